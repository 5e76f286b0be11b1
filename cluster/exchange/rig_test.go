package exchange

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"trivet/cluster/attach"
	"trivet/proto/telepresence/manager"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const client = "client-session"

func connID(t testing.TB, port uint16) tunnel.ConnID {
	t.Helper()
	id, err := tunnel.NewConnID(tunnel.TCP, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.9"), port), netip.MustParseAddrPort("127.0.0.1:9090"))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// scriptedPeers are the other servers, as the test wants them.
type scriptedPeers struct {
	others []string
	offer  func(ctx context.Context, server string, offer *peerv1.DialOffer) (bool, error)
	relay  func(ctx context.Context, server, session string, id tunnel.ConnID) (tunnel.Stream, error)
}

func (p *scriptedPeers) Others() []string { return p.others }

func (p *scriptedPeers) Offer(ctx context.Context, server string, offer *peerv1.DialOffer) (bool, error) {
	if p.offer == nil {
		return false, errors.New("no such server")
	}
	return p.offer(ctx, server, offer)
}

func (p *scriptedPeers) Relay(ctx context.Context, server, session string, id tunnel.ConnID) (tunnel.Stream, error) {
	if p.relay == nil {
		return nil, ErrNobodyWaits
	}
	return p.relay(ctx, server, session, id)
}

// rig is the exchange of the server "self" on a virtual clock.
type rig struct {
	*Exchange
	t     *testing.T
	reg   *attach.Registry
	view  *attach.View
	peers *scriptedPeers
}

func inBubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) { f(t, newRig(t)) })
}

func newRig(t *testing.T) *rig {
	r := &rig{t: t, reg: attach.NewRegistry(), view: attach.NewView(), peers: new(scriptedPeers)}
	r.Exchange = New(Config{Self: "self", Registry: r.reg, View: r.view, Peers: r.peers, Logger: slog.New(slog.DiscardHandler)})
	return r
}

// attached tells that a server holds a dial stream of the client.
func (r *rig) attached(server string) {
	r.view.Set(server, "boot", false, []attach.Attachment{{SessionID: client, DialStreams: 1}})
}

// attachHere opens a dial stream of the client on this server.
func (r *rig) attachHere() *attach.Dialer {
	d := r.reg.OpenDial(client)
	r.attached("self")
	return d
}

// take waits for the next dial request of a stream.
func take(t *testing.T, d *attach.Dialer) *manager.DialRequest {
	t.Helper()
	select {
	case <-d.Ready():
	case <-t.Context().Done():
		t.Fatal("there is no dial request")
	}
	got := d.Take()
	if len(got) != 1 {
		t.Fatalf("%d dial requests, want 1", len(got))
	}
	return got[0]
}

// end is a peer's end of a stream whose other end a handler has. As with gRPC,
// the stream is over when the handler returns.
type end struct {
	t        *testing.T
	ctx      context.Context
	cancel   context.CancelFunc
	up, down chan *manager.TunnelMessage
	result   chan error
}

// handle runs a handler on the server's end of a new stream.
func handle(t *testing.T, f func(ctx context.Context, s tunnel.Stream) error) *end {
	t.Helper()
	e := &end{t: t, up: make(chan *manager.TunnelMessage), down: make(chan *manager.TunnelMessage), result: make(chan error, 1)}
	e.ctx, e.cancel = context.WithCancel(t.Context())
	go func() {
		err := f(e.ctx, (*serverEnd)(e))
		e.cancel()
		e.result <- err
	}()
	synctest.Wait()
	return e
}

func (e *end) send(m *manager.TunnelMessage) {
	e.t.Helper()
	select {
	case e.up <- m:
	case <-e.ctx.Done():
		e.t.Fatalf("the stream ended before frame %x was read", m.GetPayload())
	}
}

func (e *end) closeSend() { close(e.up) }

func (e *end) expect(code tunnel.Code, body string) {
	e.t.Helper()
	select {
	case m := <-e.down:
		f, err := tunnel.ParseFrame(m.GetPayload())
		if err != nil || f.Code != code || string(f.Body) != body {
			e.t.Fatalf("got frame %s %q (%v), want %s %q", f.Code, f.Body, err, code, body)
		}
	case <-e.ctx.Done():
		e.t.Fatalf("the stream ended without a frame %s %q", code, body)
	}
}

// waits fails if the handler has returned already.
func (e *end) waits() {
	e.t.Helper()
	synctest.Wait()
	select {
	case err := <-e.result:
		e.t.Fatalf("the handler returned: %v", err)
	default:
	}
}

// serverEnd is the end that the handler has.
type serverEnd end

func (s *serverEnd) Context() context.Context { return s.ctx }

func (s *serverEnd) Send(m *manager.TunnelMessage) error {
	select {
	case s.down <- m:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (s *serverEnd) Recv() (*manager.TunnelMessage, error) {
	select {
	case m, ok := <-s.up:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// await starts an end that waits for the client.
func (r *rig) await(id tunnel.ConnID, timeout time.Duration) *end {
	return handle(r.t, func(ctx context.Context, s tunnel.Stream) error {
		return r.Await(ctx, s, tunnel.StreamInfo{ConnID: id, SessionID: "agent", DialTimeout: timeout}, client)
	})
}

// answer starts the client's end.
func (r *rig) answer(id tunnel.ConnID) *end {
	return handle(r.t, func(ctx context.Context, s tunnel.Stream) error {
		return r.Answer(ctx, s, tunnel.StreamInfo{ConnID: id, SessionID: client})
	})
}

// talk sends bytes both ways with a half close in each direction, after which
// both ends are over.
func talk(t *testing.T, first, second *end) {
	t.Helper()
	second.send(tunnel.NewDialOK())
	first.expect(tunnel.CodeDialOK, "")
	first.send(tunnel.NewNormal([]byte("request")))
	second.expect(tunnel.CodeNormal, "request")
	first.closeSend()
	second.expect(tunnel.CodeCloseSend, "")
	second.send(tunnel.NewNormal([]byte("response")))
	first.expect(tunnel.CodeNormal, "response")
	second.closeSend()
	first.expect(tunnel.CodeCloseSend, "")
	for name, e := range map[string]*end{"first": first, "second": second} {
		if err := <-e.result; err != nil {
			t.Errorf("the %s end is over with %v, want nil", name, err)
		}
	}
}
