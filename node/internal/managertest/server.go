package managertest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	"trivet/tunnel"
)

// Server is one server of a Manager.
type Server struct {
	managersvc.UnimplementedManagerServer
	nodesvc.UnimplementedNodeControlServer

	// Addr is where it listens.
	Addr string

	m    *Manager
	opts []grpc.ServerOption
	grpc *grpc.Server

	mu   sync.Mutex
	hung chan struct{} // nil, or closed when it hangs no longer
	gone chan struct{} // closed by Kill
}

// Serve starts a server; without options it speaks plain text.
func (m *Manager) Serve(opts ...grpc.ServerOption) *Server {
	m.t.Helper()
	s := &Server{m: m, opts: opts}
	s.listen("127.0.0.1:0")
	return s
}

func (s *Server) listen(addr string) {
	s.m.t.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		s.m.t.Fatalf("start test server: %v", err)
	}
	s.Addr = ln.Addr().String()
	s.mu.Lock()
	s.gone = make(chan struct{})
	s.mu.Unlock()
	opts := append([]grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream),
		grpc.WaitForHandlers(true),
	}, s.opts...)
	s.grpc = grpc.NewServer(opts...)
	managersvc.RegisterManagerServer(s.grpc, s)
	nodesvc.RegisterNodeControlServer(s.grpc, s)
	done := make(chan struct{})
	server := s.grpc
	go func() {
		defer close(done)
		_ = server.Serve(ln) // it ends with Kill
	}()
	s.m.t.Cleanup(func() {
		s.Kill()
		<-done
	})
}

// Kill ends all connections of the server at once.
func (s *Server) Kill() {
	s.mu.Lock()
	select {
	case <-s.gone:
	default:
		close(s.gone)
	}
	s.mu.Unlock()
	s.grpc.Stop()
}

// Restart starts a killed server at the same address.
func (s *Server) Restart() {
	s.m.t.Helper()
	s.listen(s.Addr)
}

// Hang keeps the server's connections open and answers nothing, until Resume.
func (s *Server) Hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = make(chan struct{})
}

// Resume ends Hang.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung != nil {
		close(s.hung)
		s.hung = nil
	}
}

// pass waits while the server hangs.
func (s *Server) pass(ctx context.Context) error {
	s.mu.Lock()
	hung, gone := s.hung, s.gone
	s.mu.Unlock()
	if hung == nil {
		return nil
	}
	select {
	case <-hung:
		return nil
	case <-gone:
		return status.Error(codes.Unavailable, "killed")
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
	if err := s.pass(ctx); err != nil {
		return nil, err
	}
	return h(ctx, req)
}

func (s *Server) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) error {
	if err := s.pass(ss.Context()); err != nil {
		return err
	}
	return h(srv, ss)
}

// Version implements the contract.
func (s *Server) Version(context.Context, *emptypb.Empty) (*manager.VersionInfo2, error) {
	return &manager.VersionInfo2{Name: "test manager", Version: "2.30.0"}, nil
}

// ArriveAsAgent implements the contract.
func (s *Server) ArriveAsAgent(_ context.Context, info *manager.AgentInfo) (*manager.SessionInfo, error) {
	id := "agent:" + info.GetPodUid()
	s.m.update(func() {
		s.m.agents[id] = info
		s.m.log = append(s.m.log, "arrive "+id)
	})
	return &manager.SessionInfo{SessionId: id}, nil
}

// ReconnectAgent implements the contract.
func (s *Server) ReconnectAgent(_ context.Context, r *manager.ReconnectAgentRequest) (*emptypb.Empty, error) {
	id := r.GetSession().GetSessionId()
	err := s.known(id)
	if err == nil {
		s.m.update(func() { s.m.log = append(s.m.log, "reconnect "+id) })
	}
	return &emptypb.Empty{}, err
}

// Remain implements the contract.
func (s *Server) Remain(_ context.Context, r *manager.RemainRequest) (*emptypb.Empty, error) {
	id := r.GetSession().GetSessionId()
	s.m.update(func() { s.m.log = append(s.m.log, "remain "+id) })
	return &emptypb.Empty{}, s.known(id)
}

// Depart implements the contract.
func (s *Server) Depart(_ context.Context, r *manager.SessionInfo) (*emptypb.Empty, error) {
	s.m.update(func() {
		delete(s.m.agents, r.GetSessionId())
		s.m.log = append(s.m.log, "depart "+r.GetSessionId())
	})
	return &emptypb.Empty{}, nil
}

func (s *Server) known(id string) error {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	if s.m.agents[id] == nil {
		return status.Errorf(codes.NotFound, "Session %q not found", id)
	}
	return nil
}

// ReviewIntercept implements the contract: only a waiting intercept changes.
func (s *Server) ReviewIntercept(_ context.Context, r *manager.ReviewInterceptRequest) (*emptypb.Empty, error) {
	s.m.update(func() {
		s.m.reviews = append(s.m.reviews, r)
		if old := s.m.intercepts[r.GetId()]; old.GetDisposition() == manager.InterceptDispositionType_WAITING {
			i := proto.CloneOf(old)
			i.Disposition, i.Message, i.PodIp, i.Environment = r.GetDisposition(), r.GetMessage(), r.GetPodIp(), r.GetEnvironment()
			s.m.intercepts[i.GetId()] = i
		}
	})
	return &emptypb.Empty{}, nil
}

// WatchIntercepts implements the contract.
func (s *Server) WatchIntercepts(
	r *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.InterceptInfoSnapshot],
) error {
	id := r.GetSessionId()
	if err := s.known(id); err != nil {
		return err
	}
	s.m.update(func() { s.m.watches[id]++ })
	defer s.m.update(func() { s.m.watches[id]-- })
	var last *manager.InterceptInfoSnapshot
	for {
		s.m.mu.Lock()
		info, changed := s.m.agents[id], s.m.changed
		next := s.m.snapshot(info)
		s.m.mu.Unlock()
		if info == nil {
			return nil
		}
		if last == nil || !proto.Equal(last, next) {
			if err := stream.Send(next); err != nil {
				return err
			}
			last = next
		}
		if err := s.wait(stream.Context(), changed); err != nil {
			return err
		}
	}
}

// WatchDial implements the contract; it asks for nothing.
func (s *Server) WatchDial(r *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.DialRequest]) error {
	id := r.GetSessionId()
	if err := s.known(id); err != nil {
		return err
	}
	s.m.update(func() { s.m.dials[id]++ })
	defer s.m.update(func() { s.m.dials[id]-- })
	for s.known(id) == nil {
		s.m.mu.Lock()
		changed := s.m.changed
		s.m.mu.Unlock()
		if err := s.wait(stream.Context(), changed); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for a change.
func (s *Server) wait(ctx context.Context, changed <-chan struct{}) error {
	select {
	case <-changed:
		return s.pass(ctx)
	case <-ctx.Done():
		return ctx.Err()
	case <-s.Gone():
		return status.Error(codes.Unavailable, "killed")
	}
}

// Tunnel implements the contract up to the owner's end, which is OnTunnel's.
func (s *Server) Tunnel(stream grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]) error {
	info, err := tunnel.Accept(stream)
	if err != nil {
		return err
	}
	if err := s.known(info.SessionID); err != nil {
		return err
	}
	client, err := tunnel.ReadSession(stream)
	if err != nil {
		return err
	}
	s.m.mu.Lock()
	f := s.m.onTunnel
	s.m.mu.Unlock()
	if f == nil {
		return status.Error(codes.Unavailable, "the owner has no dial stream")
	}
	return f(s, info, client, stream)
}

// Gone is closed when the server is killed.
func (s *Server) Gone() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// Sync implements trivet.node.v1.
func (s *Server) Sync(stream grpc.BidiStreamingServer[nodev1.NodeReport, nodev1.NodeOrders]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	received := make(chan error, 1)
	go func() {
		defer cancel()
		for {
			r, err := stream.Recv()
			if err != nil {
				if errors.Is(err, io.EOF) {
					err = nil
				}
				received <- err
				return
			}
			s.m.update(func() {
				if r.GetHello() != nil {
					s.m.hellos = append(s.m.hellos, r.GetHello())
				}
				if r.GetWorkloads() != nil {
					s.m.workloads = r.GetWorkloads()
				}
			})
		}
	}()
	var last *nodev1.NodeOrders
	for {
		s.m.mu.Lock()
		next, changed := s.m.orders, s.m.changed
		s.m.mu.Unlock()
		if next != nil && !proto.Equal(last, next) {
			if err := stream.Send(next); err != nil {
				return err
			}
			last = next
		}
		if err := s.wait(ctx, changed); err != nil {
			return err
		}
	}
}

// Owner returns a TunnelFunc that reaches the target at addr, as the owner's
// end would, and joins the two.
func Owner(addr string) TunnelFunc {
	return func(s *Server, _ tunnel.StreamInfo, _ string, stream tunnel.Stream) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if c, ok := stream.(interface{ Context() context.Context }); ok {
			stop := context.AfterFunc(c.Context(), cancel)
			defer stop()
		}
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return stream.Send(tunnel.NewDialReject())
		}
		if err := stream.Send(tunnel.NewDialOK()); err != nil {
			conn.Close()
			return err
		}
		_, err = tunnel.Serve(ctx, stream, tunnel.Server, conn, tunnel.Options{})
		return err
	}
}

// Reject is a TunnelFunc whose target cannot be reached.
func Reject(_ *Server, _ tunnel.StreamInfo, _ string, stream tunnel.Stream) error {
	return stream.Send(tunnel.NewDialReject())
}

// Silent is a TunnelFunc whose owner never answers.
func Silent(s *Server, _ tunnel.StreamInfo, _ string, stream tunnel.Stream) error {
	ctx := context.Background()
	if c, ok := stream.(interface{ Context() context.Context }); ok {
		ctx = c.Context()
	}
	select {
	case <-ctx.Done():
	case <-s.Gone():
	}
	return status.Error(codes.DeadlineExceeded, "timeout while establishing bidipipe")
}
