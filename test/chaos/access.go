package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"trivet/internal/netns"
	"trivet/internal/pki"
)

// agentTTL is longer than any run.
const agentTTL = 24 * time.Hour

// access makes the connections of clients, from their own namespace.
type access struct {
	servers  []*Server
	from     *netns.Handle
	ca       *pki.CA
	operator *pki.Source

	mu    sync.Mutex
	conns map[[2]int]*grpc.ClientConn // guarded by mu; by server and number
}

// Operator implements load.Access. The connection is made when it is first
// asked for and remade by itself.
func (a *access) Operator(server, number int) *grpc.ClientConn {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := [2]int{server, number}
	cc := a.conns[key]
	if cc == nil {
		cc = a.dial(server, a.operator)
		a.conns[key] = cc
	}
	return cc
}

// Agent implements load.Access.
func (a *access) Agent(namespace, workload, podUID string) ([]*grpc.ClientConn, func(), error) {
	id := pki.ID{Cluster: clusterName, Role: pki.RoleAgent, Name: namespace + "/Deployment/" + workload + "/" + podUID}
	b, err := a.ca.Issue(pki.Template{ID: id, TTL: agentTTL}, time.Now())
	if err != nil {
		return nil, nil, fmt.Errorf("issue %s: %w", id, err)
	}
	source := pki.NewSource(b)
	var conns []*grpc.ClientConn
	for i := range a.servers {
		conns = append(conns, a.dial(i, source))
	}
	return conns, func() {
		for _, cc := range conns {
			_ = cc.Close() // the first close always works
		}
	}, nil
}

func (a *access) dial(server int, source *pki.Source) *grpc.ClientConn {
	conf := pki.ClientConfig(source, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleServer}})
	cc, err := grpc.NewClient("passthrough:///"+a.servers[server].Address,
		grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return netns.Dial(ctx, a.from, "tcp", address, nil)
		}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		// Its timeout is also that of unacknowledged data, which notices a cut.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WithDisableServiceConfig())
	if err != nil {
		// Only options that contradict each other get here.
		panic(fmt.Sprintf("chaos: make a client: %v", err))
	}
	cc.Connect()
	return cc
}

func (a *access) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, cc := range a.conns {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}
