package clienttest

import (
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"trivet/internal/pki"
	"trivet/proto/telepresence/managersvc"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/tunnel"
)

// Server is one server of a Manager.
type Server struct {
	// Name is that in its certificate, Address where it listens, also after a
	// restart.
	Name, Address string
	// Health is what the server says of itself.
	Health *health.Server

	f        *Manager
	bundle   string
	grpc     *grpc.Server
	listener *gatedListener
	served   chan struct{}
}

// Start starts the server, or starts it again.
func (s *Server) Start() {
	s.f.t.Helper()
	src, err := pki.OpenSource(s.bundle)
	if err != nil {
		s.f.t.Fatal(err)
	}
	addr := s.Address
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		s.f.t.Fatal(err)
	}
	s.Address = lis.Addr().String()
	s.listener = &gatedListener{Listener: lis, gate: make(chan struct{}), dead: make(chan struct{})}
	close(s.listener.gate)
	conf := pki.ServerConfig(src, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleClient, pki.RoleOperator}})
	s.grpc = grpc.NewServer(grpc.Creds(credentials.NewTLS(conf)), grpc.UnaryInterceptor(s.f.record(s.Name)),
		grpc.ForceServerCodecV2(tunnel.Codec{}))
	s.Health = health.NewServer()
	grpc_health_v1.RegisterHealthServer(s.grpc, s.Health)
	managersvc.RegisterManagerServer(s.grpc, &managerService{s: s, f: s.f})
	operatorsvc.RegisterOperatorServer(s.grpc, &operatorService{s: s, f: s.f})
	s.served = make(chan struct{})
	go func(g *grpc.Server, l net.Listener, served chan struct{}) {
		defer close(served)
		_ = g.Serve(l) // ends with Kill
	}(s.grpc, s.listener, s.served)
}

// Kill ends the server as SIGKILL does: every connection is cut.
func (s *Server) Kill() {
	s.listener.release()
	s.grpc.Stop()
	<-s.served
}

// Hang makes the server take connections and bytes without answering, as
// SIGSTOP does.
func (s *Server) Hang() { s.listener.hang() }

// Drain asks the clients to leave. The channel is closed when they have.
func (s *Server) Drain() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	return done
}

// gatedListener can make its connections stop delivering.
type gatedListener struct {
	net.Listener
	mu   sync.Mutex
	gate chan struct{} // guarded by mu; closed: data flows
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
