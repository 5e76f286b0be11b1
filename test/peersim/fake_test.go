package peersim

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// quick is a rhythm in which a test need not wait long for a tick.
var quick = Rhythm{
	Remain: 5 * time.Millisecond, Retry: 5 * time.Millisecond, Call: 5 * time.Second, Depart: time.Second, Backoff: time.Millisecond,
}

// fake is a manager that does what a test says. Streams pass on what is pushed.
type fake struct {
	managersvc.UnimplementedManagerServer

	mu     sync.Mutex
	n      int
	errs   map[string]error
	calls  map[string]int
	ends   map[string]chan error
	review []*manager.ReviewInterceptRequest
	dns    []*manager.DNSAgentResponse
	resume []*manager.ReconnectClientRequest

	snapshots chan *manager.InterceptInfoSnapshot
	deltas    chan *manager.InterceptInfoDelta
	dials     chan *manager.DialRequest
	questions chan *manager.DNSRequest
	levels    chan *manager.LogLevelRequest
	tunnels   chan grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]
}

func newFake() *fake {
	return &fake{
		errs: map[string]error{}, calls: map[string]int{}, ends: map[string]chan error{},
		snapshots: make(chan *manager.InterceptInfoSnapshot), deltas: make(chan *manager.InterceptInfoDelta),
		dials: make(chan *manager.DialRequest), questions: make(chan *manager.DNSRequest), levels: make(chan *manager.LogLevelRequest),
		tunnels: make(chan grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]),
	}
}

// serve starts the manager and returns a way to it.
func (f *fake) serve(t *testing.T) Dialer {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	srv := grpc.NewServer()
	managersvc.RegisterManagerServer(srv, f)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		<-done
	})
	return func(context.Context) (grpc.ClientConnInterface, func(), error) {
		cc, err := grpc.NewClient("passthrough:///fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		return cc, func() { cc.Close() }, err
	}
}

// say makes an rpc answer with a code from now on; OK: as usual.
func (f *fake) say(rpc string, c codes.Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs[rpc] = nil
	if c != codes.OK {
		f.errs[rpc] = status.Error(c, "as the test says")
	}
}

func (f *fake) called(rpc string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[rpc]
}

func (f *fake) call(rpc string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[rpc]++
	return f.errs[rpc]
}

// end is the channel that ends the streams of an rpc.
func (f *fake) end(rpc string) chan error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ends[rpc] == nil {
		f.ends[rpc] = make(chan error)
	}
	return f.ends[rpc]
}

func (f *fake) Version(context.Context, *emptypb.Empty) (*manager.VersionInfo2, error) {
	return &manager.VersionInfo2{Name: "fake", Version: "v2.21.0"}, f.call("Version")
}

func (f *fake) session(rpc, prefix string) (*manager.SessionInfo, error) {
	if err := f.call(rpc); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return &manager.SessionInfo{SessionId: fmt.Sprintf("%s%d", prefix, f.n)}, nil
}

func (f *fake) ArriveAsAgent(context.Context, *manager.AgentInfo) (*manager.SessionInfo, error) {
	return f.session("ArriveAsAgent", "agent:")
}

func (f *fake) ArriveAsClient(context.Context, *manager.ClientInfo) (*manager.SessionInfo, error) {
	return f.session("ArriveAsClient", "client-")
}

func (f *fake) Remain(context.Context, *manager.RemainRequest) (*emptypb.Empty, error) {
	return new(emptypb.Empty), f.call("Remain")
}

func (f *fake) Depart(context.Context, *manager.SessionInfo) (*emptypb.Empty, error) {
	return new(emptypb.Empty), f.call("Depart")
}

func (f *fake) ReconnectAgent(context.Context, *manager.ReconnectAgentRequest) (*emptypb.Empty, error) {
	return new(emptypb.Empty), f.call("ReconnectAgent")
}

func (f *fake) ReconnectClient(_ context.Context, r *manager.ReconnectClientRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	f.resume = append(f.resume, r)
	f.mu.Unlock()
	return new(emptypb.Empty), f.call("ReconnectClient")
}

func (f *fake) GetClientConfig(context.Context, *emptypb.Empty) (*manager.CLIConfig, error) {
	return new(manager.CLIConfig), f.call("GetClientConfig")
}

func (f *fake) GetKnownWorkloadKinds(context.Context, *manager.SessionInfo) (*manager.KnownWorkloadKinds, error) {
	return new(manager.KnownWorkloadKinds), f.call("GetKnownWorkloadKinds")
}

func (f *fake) ReviewIntercept(_ context.Context, r *manager.ReviewInterceptRequest) (*emptypb.Empty, error) {
	f.mu.Lock()
	f.review = append(f.review, r)
	f.mu.Unlock()
	return new(emptypb.Empty), f.call("ReviewIntercept")
}

func (f *fake) AgentLookupDNSResponse(_ context.Context, r *manager.DNSAgentResponse) (*emptypb.Empty, error) {
	f.mu.Lock()
	f.dns = append(f.dns, r)
	f.mu.Unlock()
	return new(emptypb.Empty), f.call("AgentLookupDNSResponse")
}

// pass sends what is pushed until the test ends the stream.
func pass[M any](f *fake, rpc string, s grpc.ServerStreamingServer[M], first *M, c <-chan *M) error {
	if err := f.call(rpc); err != nil {
		return err
	}
	if first != nil {
		if err := s.Send(first); err != nil {
			return err
		}
	}
	end := f.end(rpc)
	for {
		select {
		case m := <-c:
			if err := s.Send(m); err != nil {
				return err
			}
		case err := <-end:
			return err
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (f *fake) WatchIntercepts(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.InterceptInfoSnapshot]) error {
	return pass(f, "WatchIntercepts", s, new(manager.InterceptInfoSnapshot), f.snapshots)
}

func (f *fake) WatchInterceptsDelta(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.InterceptInfoDelta]) error {
	return pass(f, "WatchInterceptsDelta", s, new(manager.InterceptInfoDelta), f.deltas)
}

func (f *fake) WatchDial(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.DialRequest]) error {
	return pass(f, "WatchDial", s, nil, f.dials)
}

func (f *fake) WatchLookupDNS(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.DNSRequest]) error {
	return pass(f, "WatchLookupDNS", s, nil, f.questions)
}

func (f *fake) WatchLogLevel(_ *emptypb.Empty, s grpc.ServerStreamingServer[manager.LogLevelRequest]) error {
	return pass(f, "WatchLogLevel", s, nil, f.levels)
}

func (f *fake) WatchAgentPods(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.AgentPodInfoSnapshot]) error {
	return pass(f, "WatchAgentPods", s, new(manager.AgentPodInfoSnapshot), nil)
}

func (f *fake) WatchClusterInfo(_ *manager.SessionInfo, s grpc.ServerStreamingServer[manager.ClusterInfo]) error {
	return pass(f, "WatchClusterInfo", s, new(manager.ClusterInfo), nil)
}

// Tunnel hands the stream to the test, which ends it through the end channel.
func (f *fake) Tunnel(s grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]) error {
	end := f.end("Tunnel")
	select {
	case f.tunnels <- s:
	case <-s.Context().Done():
		return s.Context().Err()
	}
	select {
	case err := <-end:
		return err
	case <-s.Context().Done():
		return s.Context().Err()
	}
}
