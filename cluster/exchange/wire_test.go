package exchange

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
	"trivet/tunnel"
)

// site is a server with an exchange behind real gRPC.
type site struct {
	managersvc.UnimplementedManagerServer
	peersvc.UnimplementedPeerServer
	*rig
	id    string
	conn  *grpc.ClientConn
	other map[string]*site
}

func (s *site) Others() []string {
	var out []string
	for id := range s.other {
		out = append(out, id)
	}
	return out
}

func (s *site) ClientOf(id string) (peersvc.PeerClient, error) {
	if o := s.other[id]; o != nil {
		return peersvc.NewPeerClient(o.conn), nil
	}
	return nil, errors.New("no such server")
}

func (s *site) Dial(_ context.Context, o *peerv1.DialOffer) (*peerv1.DialOfferResponse, error) {
	ok, err := s.Offered(o)
	return &peerv1.DialOfferResponse{Delivered: ok}, errs.Status(err)
}

func (s *site) Relay(stream peersvc.Peer_RelayServer) error { return errs.Status(s.ServeRelay(stream)) }

// Tunnel is the manager's, without sessions: an agent sends a second message.
func (s *site) Tunnel(stream managersvc.Manager_TunnelServer) error {
	info, err := tunnel.Accept(stream)
	if err != nil {
		return errs.Status(err)
	}
	if info.SessionID == client {
		return errs.Status(s.Answer(stream.Context(), stream, info))
	}
	to, err := tunnel.ReadSession(stream)
	if err != nil {
		return errs.Status(err)
	}
	return errs.Status(s.Await(stream.Context(), stream, info, to))
}

func (s *site) dial(ctx context.Context) managersvc.Manager_TunnelClient {
	s.t.Helper()
	stream, err := managersvc.NewManagerClient(s.conn).Tunnel(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return stream
}

func newSites(t *testing.T, ids ...string) map[string]*site {
	all := make(map[string]*site)
	for _, id := range ids {
		s := &site{rig: newRig(t), id: id, other: make(map[string]*site)}
		s.cfg.Self, s.cfg.Peers = id, WirePeers{s}
		for oid, o := range all {
			s.other[oid], o.other[id] = o, s
		}
		all[id] = s
		lis := bufconn.Listen(1 << 16)
		srv := grpc.NewServer(grpc.ForceServerCodecV2(tunnel.Codec{}))
		managersvc.RegisterManagerServer(srv, s)
		peersvc.RegisterPeerServer(srv, s)
		stopped := make(chan error, 1)
		go func() { stopped <- srv.Serve(lis) }()
		var err error
		s.conn, err = grpc.NewClient("passthrough:///"+id,
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(tunnel.Codec{})),
			grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			s.conn.Close()
			srv.Stop()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
	return all
}

func recv(t *testing.T, s managersvc.Manager_TunnelClient, code tunnel.Code, body string) {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatalf("instead of frame %s %q: %v", code, body, err)
	}
	f, err := tunnel.ParseFrame(m.GetPayload())
	if err != nil || f.Code != code || string(f.Body) != body {
		t.Fatalf("got frame %s %q (%v), want %s %q", f.Code, f.Body, err, code, body)
	}
}

// join brings the ends of one connection together, the agent's on one server,
// the client's on another.
func join(t *testing.T, ctx context.Context, agentAt, clientAt *site, port uint16) (agent, owner managersvc.Manager_TunnelClient) {
	t.Helper()
	d := clientAt.reg.OpenDial(client)
	t.Cleanup(func() { d.Close(true) })
	for _, s := range []*site{agentAt, clientAt} {
		s.attached(clientAt.id)
	}
	agent = agentAt.dial(ctx)
	if _, err := tunnel.Open(ctx, agent, tunnel.StreamInfo{ConnID: connID(t, port), SessionID: "agent", DialTimeout: 10 * time.Second}, client); err != nil {
		t.Fatal(err)
	}
	req := take(t, d)
	id, err := tunnel.ParseConnID(req.GetConnId())
	if err != nil {
		t.Fatal(err)
	}
	owner = clientAt.dial(ctx)
	if _, err := tunnel.Open(ctx, owner, tunnel.StreamInfo{ConnID: id, SessionID: client}, ""); err != nil {
		t.Fatal(err)
	}
	if err := owner.Send(tunnel.NewDialOK()); err != nil {
		t.Fatal(err)
	}
	recv(t, agent, tunnel.CodeDialOK, "")
	return agent, owner
}

func TestTunnelBetweenServers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sites := newSites(t, "s1", "s2", "s3")
	agent, owner := join(t, ctx, sites["s1"], sites["s3"], 1)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(agent.Send(tunnel.NewNormal([]byte("request"))))
	must(agent.CloseSend())
	recv(t, owner, tunnel.CodeNormal, "request")
	recv(t, owner, tunnel.CodeCloseSend, "")
	must(owner.Send(tunnel.NewNormal([]byte("response"))))
	must(owner.CloseSend())
	recv(t, agent, tunnel.CodeNormal, "response")
	recv(t, agent, tunnel.CodeCloseSend, "")
	for _, s := range []managersvc.Manager_TunnelClient{agent, owner} {
		if m, err := s.Recv(); err != io.EOF {
			t.Errorf("a stream ends with %v, %v; want OK", m, err)
		}
	}
	for id, s := range sites {
		if st := s.Stats(); st.Open != 0 || st.Waiting != 0 {
			t.Errorf("%s: stats %+v", id, st)
		}
	}
}

func TestBrokenEndBetweenServers(t *testing.T) {
	for _, which := range []string{"agent", "owner"} {
		t.Run(which, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			sites := newSites(t, "s1", "s2")
			actx, endAgent := context.WithCancel(ctx)
			defer endAgent()
			agent, owner := join(t, actx, sites["s1"], sites["s2"], 1)
			left := owner
			if which == "owner" {
				left = agent
				if err := owner.Send(tunnel.NewDisconnect()); err != nil {
					t.Fatal(err)
				}
			} else if err := agent.Send(tunnel.NewDisconnect()); err != nil {
				t.Fatal(err)
			}
			recv(t, left, tunnel.CodeDisconnect, "")
			if _, err := left.Recv(); err == nil {
				t.Error("a frame after the end")
			}
			if ctx.Err() != nil {
				t.Error("it took until the limit of the test")
			}
		})
	}
}

func TestNobodyWaitsOnAnyServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	sites := newSites(t, "s1", "s2", "s3")
	owner := sites["s1"].dial(ctx)
	if _, err := tunnel.Open(ctx, owner, tunnel.StreamInfo{ConnID: connID(t, 1), SessionID: client}, ""); err != nil {
		t.Fatal(err)
	}
	_, err := owner.Recv()
	wantError(t, err, codes.FailedPrecondition, "TUNNEL_NO_PEER")
}

func TestRelayWithoutSessionOrID(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := newSites(t, "s1")["s1"]
	for _, md := range []metadata.MD{
		{}, metadata.Pairs(MetaSession, client), metadata.Pairs(MetaSession, client, MetaConnID, "short"), metadata.Pairs(MetaConnID, string(connID(t, 1))),
	} {
		stream, err := peersvc.NewPeerClient(s.conn).Relay(metadata.NewOutgoingContext(ctx, md))
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		wantError(t, err, codes.InvalidArgument, "TUNNEL_MALFORMED")
	}
}

// hungServer takes a call and never answers.
type hungServer struct{ peersvc.PeerClient }

func (hungServer) Relay(ctx context.Context, _ ...grpc.CallOption) (grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage], error) {
	return &hungStream{ctx: ctx}, nil
}

type hungStream struct {
	grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage]
	ctx context.Context
}

func (s *hungStream) Header() (metadata.MD, error) { <-s.ctx.Done(); return nil, s.ctx.Err() }

type hungDirectory struct{}

func (hungDirectory) Others() []string                            { return []string{"s1"} }
func (hungDirectory) ClientOf(string) (peersvc.PeerClient, error) { return hungServer{}, nil }

func TestServerThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := WirePeers{hungDirectory{}}.Relay(t.Context(), "s1", client, connID(t, 1))
		if err == nil || errors.Is(err, ErrNobodyWaits) {
			t.Errorf("got %v, want an error that says no more than that it did not answer", err)
		}
		if took := time.Since(begin); took != findTimeout {
			t.Errorf("took %s, want %s", took, findTimeout)
		}
	})
}
