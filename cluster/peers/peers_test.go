package peers_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/cluster/api/peerapi"
	"trivet/cluster/attach"
	"trivet/cluster/peers"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const limit = 30 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("gave up after %s: %s", limit, what)
		}
	}
}

// world is a CA and what it issued.
type world struct {
	t  *testing.T
	ca *pki.CA
}

func newWorld(t *testing.T) *world {
	ca, err := pki.InitCA(filepath.Join(t.TempDir(), "ca"), "test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, ca}
}

func (w *world) source(role pki.Role, name string) *pki.Source {
	w.t.Helper()
	b, err := w.ca.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: time.Hour}, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return pki.NewSource(b)
}

var serverOnly = []pki.Role{pki.RoleServer}

func (w *world) pool() *peers.Pool {
	p := peers.NewPool(pki.ClientConfig(w.source(pki.RoleServer, "me"), pki.Policy{ALPN: []string{"h2"}, Roles: serverOnly}))
	w.t.Cleanup(func() { p.Close() })
	return p
}

// server is another server: its main port with the peer service behind it.
type server struct {
	t        *testing.T
	registry *attach.Registry
	address  string
	conns    atomic.Int64
	raft     net.Listener
	watch    net.Listener
	stop     func()
}

// serve starts a server at address (port 0: any) under an id and a boot id.
func (w *world) serve(address, id, boot string, role pki.Role) *server {
	w.t.Helper()
	var ln net.Listener
	var err error
	eventually(w.t, "the port is free", func() bool {
		ln, err = net.Listen("tcp", address)
		return err == nil
	})
	s := &server{t: w.t, registry: attach.NewRegistry(), address: ln.Addr().String()}
	mux := portmux.New(&counting{ln, &s.conns}, pki.ServerConfig(w.source(role, id), pki.Policy{
		ALPN: []string{"h2", peers.ALPNRaft, peers.ALPNWatch}, Roles: pki.Roles(),
	}), portmux.Options{})
	stopping := make(chan struct{})
	srv := grpc.NewServer(grpc.Creds(portmux.Credentials()))
	peersvc.RegisterPeerServer(srv, peerapi.New(peerapi.Config{
		Registry: s.registry, Stopping: stopping,
		Info: func() *peerv1.ServerInfo { return &peerv1.ServerInfo{Id: id, Name: id, BootId: boot} },
	}))
	h2 := mux.ALPN("h2")
	s.raft, s.watch = mux.ALPN(peers.ALPNRaft), mux.ALPN(peers.ALPNWatch)
	done := make(chan error, 2)
	go func() { done <- mux.Serve(context.Background()) }()
	go func() { done <- srv.Serve(h2) }()
	stopped := false
	s.stop = func() {
		if stopped {
			return
		}
		stopped = true
		close(stopping)
		srv.Stop()
		if err := mux.Close(); err != nil {
			w.t.Error(err)
		}
		for range 2 {
			if err := <-done; err != nil {
				w.t.Error(err)
			}
		}
	}
	w.t.Cleanup(s.stop)
	return s
}

type counting struct {
	net.Listener
	n *atomic.Int64
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// hears calls an rpc that every server answers and says whether it did.
func hears(ctx context.Context, p *peers.Pool, address string) error {
	c, err := p.Client(address)
	if err != nil {
		return err
	}
	_, err = c.Propose(ctx, new(peerv1.ProposeRequest))
	if errs.Reason(err) == "BAD_BATCH" {
		return nil
	}
	return fmt.Errorf("unexpected: %w", err)
}

func TestPoolSharesOneConnectionAndRemakesIt(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	p := w.pool()
	ctx := testContext(t)
	for range 20 {
		if err := hears(ctx, p, s.address); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.conns.Load(); n != 1 {
		t.Errorf("%d connections were made, want 1", n)
	}
	s.stop()
	if err := hears(ctx, p, s.address); errs.Code(err) != codes.Unavailable {
		t.Errorf("while it is down: %v, want Unavailable", err)
	}
	again := w.serve(s.address, "s1", "b2", pki.RoleServer)
	eventually(t, "the restarted server answers", func() bool { return hears(ctx, p, again.address) == nil })
}

func TestClosedPoolGivesNothing(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	p := w.pool()
	ctx := testContext(t)
	if err := hears(ctx, p, s.address); err != nil {
		t.Fatal(err)
	}
	c, err := p.Client(s.address)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Propose(ctx, new(peerv1.ProposeRequest)); errs.Code(err) != codes.Canceled {
		t.Errorf("a client of a closed pool: %v, want Canceled", err)
	}
	for _, a := range []string{s.address, "127.0.0.1:1"} {
		if _, err := p.Client(a); err == nil {
			t.Errorf("a closed pool gives a client of %s", a)
		}
	}
	if err := p.Close(); err != nil {
		t.Errorf("the second close: %v", err)
	}
}

func TestPoolRefusesWhoIsNoServer(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "node-1", "b1", pki.RoleNode)
	if err := hears(testContext(t), w.pool(), s.address); err == nil || !strings.Contains(err.Error(), "role node") {
		t.Errorf("a node in a server's place: %v, want an error about its role", err)
	}
}

func TestStreamLayerAndWatchReachTheirListeners(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	conf := pki.ClientConfig(w.source(pki.RoleServer, "me"), pki.Policy{ALPN: []string{"h2"}, Roles: serverOnly})
	layer := peers.NewStreamLayer(s.raft, conf, limit)
	for name, c := range map[string]struct {
		dial func() (net.Conn, error)
		ln   net.Listener
	}{
		"raft":  {func() (net.Conn, error) { return layer.Dial(raft.ServerAddress(s.address), limit) }, layer},
		"watch": {func() (net.Conn, error) { return peers.DialWatch(testContext(t), s.address, conf) }, s.watch},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := c.dial()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			in, err := c.ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if _, err := io.WriteString(out, name); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(name))
			if _, err := io.ReadFull(in, got); err != nil || string(got) != name {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	if _, err := layer.Dial("127.0.0.1:1", limit); err == nil {
		t.Error("dialled a port where nobody listens")
	}
}

// following starts a follower of a pool; it ends with the test.
type following struct {
	*peers.Follower
	ctx  context.Context
	view *attach.View
}

func (w *world) follow() *following {
	ctx, cancel := context.WithCancel(context.Background())
	f := &following{ctx: ctx, view: attach.NewView()}
	f.Follower = peers.NewFollower(w.pool(), f.view, slog.New(slog.DiscardHandler))
	w.t.Cleanup(func() { cancel(); f.Wait() })
	return f
}

func (f *following) expect(t *testing.T, session string, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("dial streams of %s on %v", session, want), func() bool {
		return slices.Equal(f.view.DialServers(session), want)
	})
}

func TestFollowerKnowsWhatOthersHold(t *testing.T) {
	w := newWorld(t)
	s1 := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	s2 := w.serve("127.0.0.1:0", "s2", "b1", pki.RoleServer)
	before := s1.registry.OpenDial("a")
	f := w.follow()
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: s1.address}, {ID: "s2", Address: s2.address}})
	f.expect(t, "a", "s1")
	s2.registry.OpenDial("a")
	f.expect(t, "a", "s1", "s2")
	before.Close(true)
	f.expect(t, "a", "s2")
	s1.registry.OpenDial("b")
	f.expect(t, "b", "s1")

	// A server that is gone holds nothing; one that returns starts anew.
	s1.stop()
	f.expect(t, "b")
	f.expect(t, "a", "s2")
	again := w.serve(s1.address, "s1", "b2", pki.RoleServer)
	again.registry.OpenDial("c")
	f.expect(t, "c", "s1")
	f.expect(t, "b")

	// One that left the configuration is forgotten, and known again if it returns.
	f.Reconcile(f.ctx, []peers.Target{{ID: "s2", Address: s2.address}})
	f.expect(t, "c")
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: s1.address}, {ID: "s2", Address: s2.address}})
	f.expect(t, "c", "s1")

	// One that moved is followed to where it is.
	moved := w.serve("127.0.0.1:0", "s1", "b3", pki.RoleServer)
	moved.registry.OpenDial("d")
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: moved.address}, {ID: "s2", Address: s2.address}})
	f.expect(t, "d", "s1")
	f.expect(t, "c")
}

// TestFollowerIgnoresWhoIsSomebodyElse: what a server says counts only under
// the id that the configuration has at its address.
func TestFollowerIgnoresWhoIsSomebodyElse(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s9", "b1", pki.RoleServer)
	s.registry.OpenDial("a")
	real := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	f := w.follow()
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: s.address}})
	eventually(t, "it was asked", func() bool { return s.conns.Load() > 0 })
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: real.address}})
	real.registry.OpenDial("b")
	f.expect(t, "b", "s1")
	f.expect(t, "a")
	if got := f.view.Servers("a"); len(got) != 0 {
		t.Errorf("session a is said to be on %v", got)
	}
}

// TestManyAttachmentsTakeManyMessages: one message could not carry them all.
func TestManyAttachmentsTakeManyMessages(t *testing.T) {
	w := newWorld(t)
	s := w.serve("127.0.0.1:0", "s1", "b1", pki.RoleServer)
	const n = 50_000
	name := func(i int) string { return fmt.Sprintf("%0100d", i) }
	for i := range n {
		s.registry.OpenDial(name(i))
	}
	f := w.follow()
	f.Reconcile(f.ctx, []peers.Target{{ID: "s1", Address: s.address}})
	eventually(t, "all are known", func() bool {
		for i := 0; i < n; i += 100 {
			if len(f.view.DialServers(name(i))) == 0 {
				return false
			}
		}
		return true
	})
}
