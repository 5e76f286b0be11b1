package link

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"trivet/internal/portmux"
)

// Signs of life: how often they are asked for and how long one may take.
const (
	probeEvery   = time.Second
	probeTimeout = 2 * time.Second
)

// connectTimeout bounds one attempt to connect, handshake included; a host
// that is gone answers nothing, and the next server should get its turn.
const connectTimeout = 2 * time.Second

// maxMessage is the largest message taken, 16 MiB: snapshots carry the
// environments of all intercepts.
const maxMessage = 16 << 20

// Dial makes a connection to the server at addr. It does not wait for it to be
// established.
type Dial func(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error)

// DialTLS returns a Dial that identifies itself by conf and lets explain turn
// errors of the handshake into what a person should read.
func DialTLS(conf *tls.Config, explain func(error) error) Dial {
	creds := portmux.ClientCredentials(conf, explain)
	return func(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///"+addr, append(opts,
			grpc.WithTransportCredentials(creds),
			grpc.WithNoProxy(),
		)...)
	}
}

// PoolConfig describes a Pool.
type PoolConfig struct {
	// Servers are addresses, in order of preference; at least one.
	Servers []string
	Dial    Dial
	Logger  *slog.Logger
	Metrics *Metrics
}

// Pool is the servers of the manager. See the package comment.
type Pool struct {
	servers  []*Server
	logger   *slog.Logger
	metrics  *Metrics
	revision revision

	mu      sync.Mutex
	current int    // guarded by mu
	reason  string // guarded by mu; why the last server was left
}

// NewPool makes a pool. It connects to nothing before it is asked to.
func NewPool(cfg PoolConfig) (*Pool, error) {
	if len(cfg.Servers) == 0 {
		return nil, errors.New("make pool of servers: none is named")
	}
	p := &Pool{logger: cfg.Logger, metrics: cfg.Metrics}
	opts := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: RedialMin, Multiplier: 2, Jitter: 0.5, MaxDelay: RedialMax},
			MinConnectTimeout: connectTimeout,
		}),
		grpc.WithUnaryInterceptor(p.revision.unary),
		grpc.WithStreamInterceptor(p.revision.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
	}
	for _, addr := range cfg.Servers {
		p.servers = append(p.servers, &Server{
			addr: addr,
			dial: func() (*grpc.ClientConn, error) { return cfg.Dial(addr, opts...) },
		})
	}
	return p, nil
}

// Current returns the server to use now.
func (p *Pool) Current() *Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.servers[p.current]
}

// After returns the server that follows s, for one more attempt at a call that
// s did not serve. With one server it is s.
func (p *Pool) After(s *Server) *Server {
	for i, other := range p.servers {
		if other == s {
			return p.servers[(i+1)%len(p.servers)]
		}
	}
	return p.Current()
}

// Size returns how many servers there are.
func (p *Pool) Size() int { return len(p.servers) }

// Failed says that s did not serve and why. If s is still the current server,
// the next one takes its place.
func (p *Pool) Failed(s *Server, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.servers[p.current] != s {
		return
	}
	p.current = (p.current + 1) % len(p.servers)
	p.metrics.failovers.Inc()
	// Without a manager this happens ten times a second: one line per reason.
	if reason := Describe(err); reason != p.reason {
		p.reason = reason
		p.logger.Warn("server does not serve, turning to the next",
			"server", s.addr, "next", p.servers[p.current].addr, "err", reason)
	}
}

// Worked says that s serves, so that its next failure is news.
func (p *Pool) Worked(*Server) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = ""
}

// Run watches over the servers in use until ctx ends.
func (p *Pool) Run(ctx context.Context) {
	var probes sync.WaitGroup
	defer probes.Wait()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, s := range p.servers {
			if !s.startProbe() {
				continue
			}
			probes.Go(func() {
				defer s.endProbe()
				p.probe(ctx, s)
			})
		}
	}
}

// probe cuts off a server that gives no sign of life. Only silence counts: a
// server that answers with an error is alive.
func (p *Pool) probe(ctx context.Context, s *Server) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	err := s.ping(ctx)
	if status.Code(err) != codes.DeadlineExceeded {
		return
	}
	p.metrics.hangs.Inc()
	p.Failed(s, errSilent)
	s.reset()
}

var errSilent = errors.New("it gave no sign of life for 2 s")

// Close ends all connections. Calls that are under way end with an error.
func (p *Pool) Close() {
	for _, s := range p.servers {
		s.close()
	}
}

// Describe returns the text of an error as a person should read it, without
// gRPC's own words around it.
func Describe(err error) string {
	if err == nil {
		return ""
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
