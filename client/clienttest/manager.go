package clienttest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/tunnel"
)

// Cluster is the name in all identities.
const Cluster = "test"

// revisionKey is the response header that carries a revision.
const revisionKey = "trivet-revision"

// Manager is a manager. Its exported fields are read and written under Change,
// or before the first client connects.
type Manager struct {
	t  testing.TB
	CA *pki.CA
	// Bundle is the directory of the bundle of a client, Operator that of an
	// operator.
	Bundle, Operator string
	// Servers are s1, s2, ...
	Servers []*Server
	// Tunnels receives each stream that a client opens.
	Tunnels chan *Tunnel

	mu      sync.Mutex
	changed chan struct{} // guarded by mu
	calls   []Call        // guarded by mu
	answers map[string][]error
	nextID  int
	dials   map[string]chan *manager.DialRequest

	// Sessions and Intercepts are the state, by id.
	Sessions   map[string]*manager.ClientInfo
	Intercepts map[string]*manager.InterceptInfo
	// Prepared answers PrepareIntercept, Disposition is that of a new
	// intercept, Environment the workload's.
	Prepared    *manager.PreparedIntercept
	Disposition manager.InterceptDispositionType
	Environment map[string]string
	// Revision, if not empty, goes into every response's headers.
	Revision string
	// OnCall is called when a unary call has arrived.
	OnCall func(method string)

	// What the operator service answers beside the intercepts.
	Status    operatorv1.StatusResponse
	Nodes     []*operatorv1.Node
	Workloads []*operatorv1.Workload
	Clients   []*operatorv1.Session
	Peers     []*operatorv1.Peer
	// Digests are by server name.
	Digests map[string]*operatorv1.DigestResponse
	// Health is by server name.
	Health map[string]*operatorv1.HealthResponse
	// Audit and AuditHeads are what ListAudit sends, one record an answer.
	Audit      []*commandv1.AuditRow
	AuditHeads []*commandv1.AuditHead
	// Limits are those in force.
	Limits *commandv1.Limits
	// Policies are in the order in which they are listed.
	Policies []*commandv1.PolicyRow
	// Support is what each server sends for a support bundle.
	Support []*operatorv1.CollectResponse
}

// Call is a unary call that arrived.
type Call struct {
	// Server is the name of the one that got it, Method the short name of the
	// rpc, FullMethod the complete one.
	Server, Method, FullMethod string
	// MD is the metadata that came with it.
	MD metadata.MD
}

// Tunnel is a stream that a client opened in answer to a DialRequest. Whoever
// takes it has to send to End, once.
type Tunnel struct {
	Info   tunnel.StreamInfo
	Stream managersvc.Manager_TunnelServer
	// End ends the stream; the value is what the handler returns.
	End chan error
}

// New starts a manager of so many servers.
func New(t testing.TB, servers int) *Manager {
	t.Helper()
	f := &Manager{
		t: t, Sessions: map[string]*manager.ClientInfo{}, Intercepts: map[string]*manager.InterceptInfo{},
		changed: make(chan struct{}), answers: map[string][]error{}, dials: map[string]chan *manager.DialRequest{},
		Prepared: &manager.PreparedIntercept{
			Namespace: "shop", Protocol: "TCP", ContainerPort: 80, ContainerName: "web", WorkloadKind: "process",
		},
		Disposition: manager.InterceptDispositionType_ACTIVE,
		Environment: map[string]string{"APP": "web"},
		Tunnels:     make(chan *Tunnel, 1024),
		Digests:     map[string]*operatorv1.DigestResponse{},
		Health:      map[string]*operatorv1.HealthResponse{},
		Limits:      &commandv1.Limits{SessionsPerIdentity: 64, Nodes: 10_000},
	}
	var err error
	// Old enough that certificates can have expired.
	if f.CA, err = pki.InitCA(t.TempDir(), Cluster, time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.Bundle, f.Operator = t.TempDir()+"/client", t.TempDir()+"/operator"
	f.Issue(pki.RoleClient, "alice", f.Bundle)
	f.Issue(pki.RoleOperator, "olga", f.Operator)
	for i := range servers {
		s := &Server{f: f, Name: fmt.Sprintf("s%d", i+1), bundle: t.TempDir() + "/bundle"}
		f.dials[s.Name] = make(chan *manager.DialRequest, 4096)
		f.Issue(pki.RoleServer, s.Name, s.bundle)
		f.Servers = append(f.Servers, s)
		s.Start()
		t.Cleanup(s.Kill)
	}
	return f
}

// Issue writes a bundle of that identity to dir.
func (f *Manager) Issue(role pki.Role, name, dir string) {
	f.t.Helper()
	b, err := f.CA.Issue(pki.Template{ID: pki.ID{Cluster: Cluster, Role: role, Name: name}, TTL: time.Hour}, time.Now())
	if err == nil {
		err = b.Write(dir)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// Addresses returns those of all servers.
func (f *Manager) Addresses() []string {
	out := make([]string, len(f.Servers))
	for i, s := range f.Servers {
		out[i] = s.Address
	}
	return out
}

// Server returns the server of that name.
func (f *Manager) Server(name string) *Server {
	f.t.Helper()
	for _, s := range f.Servers {
		if s.Name == name {
			return s
		}
	}
	f.t.Fatalf("no server %q", name)
	return nil
}

// Change alters the state and wakes all watches.
func (f *Manager) Change(alter func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alter()
	close(f.changed)
	f.changed = make(chan struct{})
}

// Answer plans what the next calls of a method answer, one error each; nil lets
// a call through.
func (f *Manager) Answer(method string, err ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[method] = append(f.answers[method], err...)
}

// Calls returns the calls of a method that have arrived.
func (f *Manager) Calls(method string) []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []Call
	for _, c := range f.calls {
		if c.Method == method {
			out = append(out, c)
		}
	}
	return out
}

// Forget makes the manager lose its state.
func (f *Manager) Forget() {
	f.Change(func() {
		f.Sessions = map[string]*manager.ClientInfo{}
		f.Intercepts = map[string]*manager.InterceptInfo{}
	})
}

// Dispose sets the disposition of every intercept.
func (f *Manager) Dispose(d manager.InterceptDispositionType, message string) {
	f.Change(func() {
		for id, info := range f.Intercepts {
			f.Intercepts[id] = &manager.InterceptInfo{
				Id: id, Spec: info.Spec, ClientSession: info.ClientSession, Disposition: d, Message: message,
				Environment: info.Environment, ModifiedAt: timestamppb.Now(),
			}
		}
	})
}

// Dial asks the client that is attached to a server for a tunnel.
func (f *Manager) Dial(server string, connID []byte) {
	f.dials[server] <- &manager.DialRequest{
		ConnId: connID, RoundtripLatency: int64(time.Second), DialTimeout: int64(5 * time.Second),
	}
}

// record notes every unary call and answers the planned ones.
func (f *Manager) record(server string) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
		md, _ := metadata.FromIncomingContext(ctx)
		f.mu.Lock()
		f.calls = append(f.calls, Call{server, method, info.FullMethod, md})
		var err error
		if planned := f.answers[method]; len(planned) > 0 {
			err = planned[0]
			f.answers[method] = planned[1:]
		}
		revision, onCall := f.Revision, f.OnCall
		f.mu.Unlock()
		if onCall != nil {
			onCall(method)
		}
		if revision != "" {
			if err := grpc.SetHeader(ctx, metadata.Pairs(revisionKey, revision)); err != nil {
				return nil, err
			}
		}
		if err != nil {
			return nil, errs.Status(err)
		}
		out, err := next(ctx, req)
		return out, errs.Status(err)
	}
}
