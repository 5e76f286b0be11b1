package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeManager is a manager of several servers over real TLS on loopback. Its
// state is shared, as that of a replicated manager; each server can be killed,
// hung, drained and started again.
type fakeManager struct {
	t       *testing.T
	ca      *pki.CA
	bundle  string // directory of the client's bundle
	servers []*fakeServer

	mu         sync.Mutex
	sessions   map[string]*manager.ClientInfo
	intercepts map[string]*manager.InterceptInfo // by id
	nextID     int
	changed    chan struct{}
	calls      []fakeCall
	answers    map[string][]error // by method: what the next calls answer
	prepared   *manager.PreparedIntercept
	initial    manager.InterceptDispositionType
	revision   string
	dials      map[string]chan *manager.DialRequest // by server name
	tunnels    chan *fakeTunnel
}

// fakeCall is a unary call that arrived.
type fakeCall struct {
	server, method string
	md             metadata.MD
}

// fakeTunnel is a stream that a client opened in answer to a DialRequest.
type fakeTunnel struct {
	info   tunnel.StreamInfo
	stream managersvc.Manager_TunnelServer
	end    chan error // what the handler returns
}

func newFakeManager(t *testing.T, servers int) *fakeManager {
	t.Helper()
	f := &fakeManager{
		t: t, sessions: map[string]*manager.ClientInfo{}, intercepts: map[string]*manager.InterceptInfo{},
		changed: make(chan struct{}), answers: map[string][]error{}, dials: map[string]chan *manager.DialRequest{},
		prepared: &manager.PreparedIntercept{Namespace: "shop", Protocol: "TCP", ContainerPort: 80, ContainerName: "web", WorkloadKind: "process"},
		initial:  manager.InterceptDispositionType_ACTIVE,
		tunnels:  make(chan *fakeTunnel, 1024),
	}
	var err error
	// Old enough that certificates can have expired.
	if f.ca, err = pki.InitCA(t.TempDir(), "test", time.Now().Add(-2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	f.bundle = t.TempDir() + "/bundle"
	f.issue(pki.RoleClient, "alice", f.bundle)
	for i := range servers {
		s := &fakeServer{f: f, name: fmt.Sprintf("s%d", i+1), bundle: t.TempDir() + "/bundle"}
		f.dials[s.name] = make(chan *manager.DialRequest, 4096)
		f.issue(pki.RoleServer, s.name, s.bundle)
		f.servers = append(f.servers, s)
		s.start()
		t.Cleanup(s.kill)
	}
	return f
}

func (f *fakeManager) issue(role pki.Role, name, dir string) {
	f.t.Helper()
	b, err := f.ca.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: time.Hour}, time.Now())
	if err == nil {
		err = b.Write(dir)
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeManager) context() Context {
	c := Context{Name: "test", Bundle: f.bundle, Namespace: "shop"}
	for _, s := range f.servers {
		c.Servers = append(c.Servers, s.addr)
	}
	return c
}

func (f *fakeManager) server(name string) *fakeServer {
	for _, s := range f.servers {
		if s.name == name {
			return s
		}
	}
	f.t.Fatalf("no server %q", name)
	return nil
}

// change alters the state and wakes all watches.
func (f *fakeManager) change(alter func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alter()
	close(f.changed)
	f.changed = make(chan struct{})
}

// answer makes the next call of method fail with err.
func (f *fakeManager) answer(method string, err ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[method] = append(f.answers[method], err...)
}

func (f *fakeManager) callsOf(method string) []fakeCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []fakeCall
	for _, c := range f.calls {
		if c.method == method {
			out = append(out, c)
		}
	}
	return out
}

// forgetAll makes the manager lose its state.
func (f *fakeManager) forgetAll() {
	f.change(func() {
		f.sessions = map[string]*manager.ClientInfo{}
		f.intercepts = map[string]*manager.InterceptInfo{}
	})
}

// dispose sets the disposition of every intercept.
func (f *fakeManager) dispose(d manager.InterceptDispositionType, message string) {
	f.change(func() {
		for id, info := range f.intercepts {
			f.intercepts[id] = &manager.InterceptInfo{
				Id: id, Spec: info.Spec, ClientSession: info.ClientSession, Disposition: d, Message: message,
				Environment: info.Environment, ModifiedAt: timestamppb.Now(),
			}
		}
	})
}

// dial asks the client, through server, for a tunnel.
func (f *fakeManager) dial(server string, id []byte) {
	f.dials[server] <- &manager.DialRequest{ConnId: id, RoundtripLatency: int64(time.Second), DialTimeout: int64(5 * time.Second)}
}

func (f *fakeManager) unary(
	server string,
) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
		md, _ := metadata.FromIncomingContext(ctx)
		f.mu.Lock()
		f.calls = append(f.calls, fakeCall{server, method, md})
		var err error
		if planned := f.answers[method]; len(planned) > 0 {
			err = planned[0]
			f.answers[method] = planned[1:]
		}
		revision := f.revision
		f.mu.Unlock()
		if revision != "" {
			if err := grpc.SetHeader(ctx, metadata.Pairs(RevisionKey, revision)); err != nil {
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

// fakeServer is one server of a fakeManager.
type fakeServer struct {
	managersvc.UnimplementedManagerServer
	operatorsvc.UnimplementedOperatorServer
	f            *fakeManager
	name, bundle string
	addr         string
	grpc         *grpc.Server
	health       *health.Server
	listener     *gatedListener
	served       chan struct{}
}

func (s *fakeServer) start() {
	s.f.t.Helper()
	src, err := pki.OpenSource(s.bundle)
	if err != nil {
		s.f.t.Fatal(err)
	}
	addr := s.addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		s.f.t.Fatal(err)
	}
	s.addr = lis.Addr().String()
	s.listener = &gatedListener{Listener: lis, gate: make(chan struct{}), dead: make(chan struct{})}
	close(s.listener.gate)
	conf := pki.ServerConfig(src, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleClient, pki.RoleOperator}})
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)), grpc.UnaryInterceptor(s.f.unary(s.name)),
		grpc.ForceServerCodecV2(tunnel.Codec{}))
	s.health = health.NewServer()
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	managersvc.RegisterManagerServer(s.grpc, s)
	operatorsvc.RegisterOperatorServer(s.grpc, operatorPart{s})
	s.served = make(chan struct{})
	go func() {
		defer close(s.served)
		_ = s.grpc.Serve(s.listener) // ends with kill
	}()
}

// kill ends the server as SIGKILL does: every connection is cut.
func (s *fakeServer) kill() {
	s.listener.release()
	s.grpc.Stop()
	<-s.served
}

// hang makes the server take bytes and connections without answering.
func (s *fakeServer) hang() { s.listener.hang() }

// drain asks the clients to leave.
func (s *fakeServer) drain() chan struct{} {
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	return done
}

// gatedListener can make its connections stop answering.
type gatedListener struct {
	net.Listener
	mu   sync.Mutex
	gate chan struct{} // closed: data flows
	dead chan struct{}
	once sync.Once
}

func (l *gatedListener) hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate = make(chan struct{})
}

func (l *gatedListener) release() { l.once.Do(func() { close(l.dead) }) }

func (l *gatedListener) wait() {
	l.mu.Lock()
	gate := l.gate
	l.mu.Unlock()
	select {
	case <-gate:
	case <-l.dead:
	}
}

func (l *gatedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &gatedConn{c, l}, nil
}

type gatedConn struct {
	net.Conn
	l *gatedListener
}

func (c *gatedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.l.wait()
	return n, err
}

func (s *fakeServer) session(info *manager.SessionInfo) error {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if s.f.sessions[info.GetSessionId()] == nil {
		return errs.New(codes.NotFound, "SESSION_NOT_FOUND", "Session %q not found", info.GetSessionId())
	}
	return nil
}

func (s *fakeServer) ArriveAsClient(_ context.Context, c *manager.ClientInfo) (*manager.SessionInfo, error) {
	var id string
	s.f.change(func() {
		s.f.nextID++
		id = fmt.Sprintf("session-%d", s.f.nextID)
		s.f.sessions[id] = c
	})
	return &manager.SessionInfo{SessionId: id}, nil
}

func (s *fakeServer) ReconnectClient(_ context.Context, r *manager.ReconnectClientRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.session(r.GetSession())
}

func (s *fakeServer) Remain(_ context.Context, r *manager.RemainRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, s.session(r.GetSession())
}

func (s *fakeServer) Depart(_ context.Context, i *manager.SessionInfo) (*emptypb.Empty, error) {
	s.f.change(func() { delete(s.f.sessions, i.GetSessionId()) })
	return &emptypb.Empty{}, nil
}

func (s *fakeServer) EnsureAgent(context.Context, *manager.EnsureAgentRequest) (*manager.AgentInfoSnapshot, error) {
	return &manager.AgentInfoSnapshot{}, nil
}

func (s *fakeServer) PrepareIntercept(_ context.Context, r *manager.CreateInterceptRequest) (*manager.PreparedIntercept, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	return s.f.prepared, nil
}

func (s *fakeServer) CreateIntercept(_ context.Context, r *manager.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	if err := s.session(r.GetSession()); err != nil {
		return nil, err
	}
	id := r.GetSession().GetSessionId() + ":" + r.GetInterceptSpec().GetName()
	info := &manager.InterceptInfo{
		Id: id, Spec: r.GetInterceptSpec(), ClientSession: r.GetSession(), Disposition: s.f.initial,
		Environment: map[string]string{"APP": "web"}, ModifiedAt: timestamppb.Now(),
	}
	s.f.change(func() { s.f.intercepts[id] = info })
	return info, nil
}

func (s *fakeServer) RemoveIntercept(_ context.Context, r *manager.RemoveInterceptRequest2) (*emptypb.Empty, error) {
	s.f.change(func() { delete(s.f.intercepts, r.GetSession().GetSessionId()+":"+r.GetName()) })
	return &emptypb.Empty{}, nil
}

func (s *fakeServer) GetIntercept(_ context.Context, r *manager.GetInterceptRequest) (*manager.InterceptInfo, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	if info := s.f.intercepts[r.GetSession().GetSessionId()+":"+r.GetName()]; info != nil {
		return info, nil
	}
	return nil, errs.New(codes.NotFound, "INTERCEPT_NOT_FOUND", "Intercept named %q not found", r.GetName())
}

func (s *fakeServer) WatchIntercepts(info *manager.SessionInfo, stream managersvc.Manager_WatchInterceptsServer) error {
	for {
		if err := s.session(info); err != nil {
			return nil // the session has ended
		}
		s.f.mu.Lock()
		changed := s.f.changed
		snapshot := &manager.InterceptInfoSnapshot{}
		for _, i := range s.f.intercepts {
			snapshot.Intercepts = append(snapshot.Intercepts, i)
		}
		s.f.mu.Unlock()
		if err := stream.Send(snapshot); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *fakeServer) WatchDial(_ *manager.SessionInfo, stream managersvc.Manager_WatchDialServer) error {
	for {
		select {
		case r := <-s.f.dials[s.name]:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (s *fakeServer) Tunnel(stream managersvc.Manager_TunnelServer) error {
	info, err := tunnel.Accept(stream)
	if err != nil {
		return errs.Status(err)
	}
	t := &fakeTunnel{info: info, stream: stream, end: make(chan error, 1)}
	s.f.tunnels <- t
	select {
	case err := <-t.end:
		return errs.Status(err)
	case <-stream.Context().Done():
		return nil
	}
}

// operatorPart keeps the two services' methods of the same name apart.
type operatorPart struct{ *fakeServer }

func (o operatorPart) CreateIntercept(ctx context.Context, r *operatorv1.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	return o.fakeServer.CreateIntercept(ctx, r.GetRequest())
}

func (o operatorPart) GetIntercept(context.Context, *operatorv1.GetInterceptRequest) (*operatorv1.Intercept, error) {
	return nil, errors.New("not used here")
}

func (o operatorPart) Status(context.Context, *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	return &operatorv1.StatusResponse{Server: o.name}, nil
}

// fast are options under which a hung server is noticed soon.
func fast() Options {
	return Options{PingAfter: 50 * time.Millisecond, PingTimeout: time.Second, AttemptTimeout: 5 * time.Second}
}

func dialFake(t *testing.T, f *fakeManager, opts Options) *Pool {
	t.Helper()
	p, err := Dial(t.Context(), f.context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func openSession(t *testing.T, p *Pool, change ...func(*SessionOptions)) *Session {
	t.Helper()
	opts := SessionOptions{Name: "alice@laptop", InstallID: "install", Version: "1.0.0", Namespace: "shop"}
	for _, c := range change {
		c(&opts)
	}
	s, err := OpenSession(t.Context(), p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the manager may be dead by now
	})
	return s
}

// await returns the next event of that kind, and fails the test if none comes.
func await(t *testing.T, s *Session, kind EventKind) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []string
	for {
		e, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("no event %q came, only %q: %v", kind, seen, err)
		}
		if e.Kind == kind {
			return e
		}
		seen = append(seen, string(e.Kind)+" "+e.Message)
	}
}

// receive takes a value from c, and fails the test when none comes.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}
