package steal

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// meant is the address that visitors of the proxy under test mean.
var meant = netip.MustParseAddrPort("10.0.0.7:8080")

// listenHere makes a listener on loopback.
func listenHere(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback4, 0)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func addrOf(ln net.Listener) netip.AddrPort { return ln.Addr().(*net.TCPAddr).AddrPort() }

// newProxy starts a proxy in front of an app that answers "app", with a fresh
// heartbeat, and returns the address that visitors dial.
func newProxy(t *testing.T, change func(*ProxyConfig)) (*Proxy, netip.AddrPort) {
	t.Helper()
	app, front := listenHere(t), listenHere(t)
	answer(t, app, "app")
	cfg := ProxyConfig{
		Routes:     []Route{{Listener: front, Original: meant, App: addrOf(app)}},
		StaleAfter: time.Hour,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := NewProxy(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if err := p.Beat(); err != nil {
		t.Fatal(err)
	}
	return p, addrOf(front)
}

func dialHere(t *testing.T, addr netip.AddrPort) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// whoIsThere makes one visit that may be refused at any point.
func whoIsThere(front netip.AddrPort) (string, error) {
	conn, err := net.DialTimeout("tcp", front.String(), answerTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return tryAsk(conn, answerTimeout)
}

func TestProxyStealsWhatIsArmed(t *testing.T) {
	p, front := newProxy(t, nil)
	answer(t, p.Listener(), "steal")
	want := func(who string) {
		t.Helper()
		if got := ask(t, dialHere(t, front)); got != who {
			t.Errorf("%s answers, want %s", got, who)
		}
	}
	want("app")
	kept := dialHere(t, front)
	if got := ask(t, kept); got != "app" {
		t.Fatalf("%s answers", got)
	}
	for _, k := range []Key{TCPKey(meant), AnyAddress(meant.Port())[0]} {
		if err := p.Arm(k); err != nil {
			t.Fatal(err)
		}
		want("steal")
		if keys, err := p.ArmedKeys(); err != nil || len(keys) != 1 || keys[0] != k {
			t.Errorf("armed %v (%v), want %v", keys, err, k)
		}
		if err := p.Disarm(k); err != nil {
			t.Fatal(err)
		}
		want("app")
	}
	if err := p.Arm(TCPKey(netip.AddrPortFrom(meant.Addr().Next(), meant.Port()))); err != nil {
		t.Fatal(err)
	}
	want("app")
	if got := ask(t, kept); got != "app" {
		t.Errorf("the connection from before is answered by %s", got)
	}
	s, err := p.Stats()
	if err != nil || s.Stolen != 2 || s.NotArmed != 5 {
		t.Errorf("stats %+v (%v), want 2 stolen and 5 not armed", s, err)
	}
}

func TestProxyShowsTheOriginalDestination(t *testing.T) {
	p, front := newProxy(t, nil)
	if err := p.Arm(TCPKey(meant)); err != nil {
		t.Fatal(err)
	}
	visitor := dialHere(t, front)
	conn, err := p.Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := OriginalDst(conn); got != meant {
		t.Errorf("original destination %v, want %v", got, meant)
	}
	if conn.RemoteAddr().String() != visitor.LocalAddr().String() {
		t.Errorf("visitor %v, want %v", conn.RemoteAddr(), visitor.LocalAddr())
	}
}

func TestProxyWithoutOriginalUsesTheFront(t *testing.T) {
	p, front := newProxy(t, func(c *ProxyConfig) { c.Routes[0].Original = netip.AddrPort{} })
	if err := p.Arm(TCPKey(front)); err != nil {
		t.Fatal(err)
	}
	dialHere(t, front)
	conn, err := p.Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := OriginalDst(conn); got != front {
		t.Errorf("original destination %v, want %v", got, front)
	}
}

func TestProxyDialsTheApp(t *testing.T) {
	p, front := newProxy(t, nil)
	if err := p.Arm(TCPKey(meant)); err != nil {
		t.Fatal(err)
	}
	answer(t, p.Listener(), "steal")
	for _, dst := range []netip.AddrPort{meant, netip.AddrPortFrom(loopback4, meant.Port())} {
		conn, err := p.DialApp(t.Context(), dst)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got := ask(t, conn); got != "app" {
			t.Errorf("%v: %s answers", dst, got)
		}
	}
	if conn, err := p.DialApp(t.Context(), front); err == nil {
		conn.Close()
		t.Error("dialled an app on a port that has no route")
	}
}

func TestProxyWithoutHeartbeatPassesToTheApp(t *testing.T) {
	p, front := newProxy(t, nil)
	if err := p.Arm(TCPKey(meant)); err != nil {
		t.Fatal(err)
	}
	answer(t, p.Listener(), "steal")
	p.beaten.Store(0)
	if got := ask(t, dialHere(t, front)); got != "app" {
		t.Errorf("never beaten: %s answers", got)
	}
	if err := p.Beat(); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, dialHere(t, front)); got != "steal" {
		t.Errorf("beaten: %s answers", got)
	}
	if n := counted(t, p, func(s Stats) uint64 { return s.Stale }); n != 1 {
		t.Errorf("%d stale, want 1", n)
	}
}

func TestProxyHeartbeatGrowsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Proxy{cfg: ProxyConfig{StaleAfter: DefaultStaleAfter}, started: time.Now()}
		if p.isBeating() {
			t.Error("beating before the first beat")
		}
		if err := p.Beat(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultStaleAfter)
		if !p.isBeating() {
			t.Errorf("stale after %v", DefaultStaleAfter)
		}
		time.Sleep(time.Millisecond)
		if p.isBeating() {
			t.Error("beating long after the last beat")
		}
	})
}

func TestProxyQueueIsBounded(t *testing.T) {
	p, front := newProxy(t, func(c *ProxyConfig) { c.Queue = 1 })
	if err := p.Arm(TCPKey(meant)); err != nil {
		t.Fatal(err)
	}
	waiting := dialHere(t, front)
	eventually(t, func() bool {
		return counted(t, p, func(s Stats) uint64 { return s.Stolen }) == 1
	}, "nothing is stolen")
	if got := ask(t, dialHere(t, front)); got != "app" {
		t.Errorf("beyond the queue: %s answers", got)
	}
	if n := counted(t, p, func(s Stats) uint64 { return s.Overflow }); n != 1 {
		t.Errorf("%d overflowed, want 1", n)
	}
	// Closing the listener gives the waiting one to the app.
	if err := p.Listener().Close(); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, waiting); got != "app" {
		t.Errorf("the waiting connection: %s answers", got)
	}
	if got := ask(t, dialHere(t, front)); got != "app" {
		t.Errorf("after the listener's close: %s answers", got)
	}
	if _, err := p.Listener().Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept: %v, want ErrClosed", err)
	}
}

func TestProxyConnectionsAreBounded(t *testing.T) {
	p, front := newProxy(t, func(c *ProxyConfig) { c.MaxConns = 1 })
	first := dialHere(t, front)
	if got := ask(t, first); got != "app" {
		t.Fatalf("%s answers", got)
	}
	if name, err := whoIsThere(front); err == nil {
		t.Errorf("%s answers beyond the limit", name)
	}
	if n := counted(t, p, func(s Stats) uint64 { return s.Refused }); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
	first.Close()
	eventually(t, func() bool {
		name, err := whoIsThere(front)
		return err == nil && name == "app"
	}, "the place of an ended connection stays taken")
}

func TestProxyPassesHalfCloseOn(t *testing.T) {
	app := listenHere(t)
	_, front := newProxy(t, func(c *ProxyConfig) { c.Routes[0].App = addrOf(app) })
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		conn, err := app.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		// The answer comes after the request's end.
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Error(err)
		}
		if _, err := conn.Write(all); err != nil {
			t.Error(err)
		}
	})
	visitor := dialHere(t, front)
	if _, err := io.WriteString(visitor, "a whole request"); err != nil {
		t.Fatal(err)
	}
	if err := visitor.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if err := visitor.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(visitor)
	if err != nil || string(got) != "a whole request" {
		t.Errorf("answer %q, %v", got, err)
	}
}

func TestProxyPassesResetsOn(t *testing.T) {
	app := listenHere(t)
	_, front := newProxy(t, func(c *ProxyConfig) { c.Routes[0].App = addrOf(app) })
	visitor := dialHere(t, front)
	conn, err := app.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	reset(conn)
	if err := visitor.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := visitor.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}

func TestProxyWithoutAppResetsVisitors(t *testing.T) {
	gone := listenHere(t)
	gone.Close()
	p, front := newProxy(t, func(c *ProxyConfig) { c.Routes[0].App = addrOf(gone) })
	if name, err := whoIsThere(front); err == nil {
		t.Errorf("%s answers", name)
	}
	if n := counted(t, p, func(s Stats) uint64 { return s.Refused }); n != 1 {
		t.Errorf("%d refused, want 1", n)
	}
}

func TestProxyCloseEndsEverything(t *testing.T) {
	p, front := newProxy(t, nil)
	passed := dialHere(t, front)
	if got := ask(t, passed); got != "app" {
		t.Fatalf("%s answers", got)
	}
	if err := p.Arm(TCPKey(meant)); err != nil {
		t.Fatal(err)
	}
	taken := dialHere(t, front)
	conn, err := p.Listener().Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waiting := dialHere(t, front)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]net.Conn{"passed": passed, "waiting": waiting} {
		if name, err := tryAsk(c, answerTimeout); err == nil {
			t.Errorf("%s connection: %s answers", what, name)
		}
	}
	go reply(conn, "steal")
	if got := ask(t, taken); got != "steal" {
		t.Errorf("accepted connection: %s answers", got)
	}
	if err := p.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

func TestProxyConfigIsChecked(t *testing.T) {
	ln := listenHere(t)
	for name, cfg := range map[string]ProxyConfig{
		"no route":    {},
		"no listener": {Routes: []Route{{App: meant}}},
		"no app":      {Routes: []Route{{Listener: ln}}},
		"negative":    {Routes: []Route{{Listener: ln, App: meant}}, Queue: -1},
	} {
		if p, err := NewProxy(cfg); err == nil {
			p.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestBackendsHaveOneFace runs an agent's use of a Port against both.
func TestBackendsHaveOneFace(t *testing.T) {
	use := func(t *testing.T, b Backend, dst netip.AddrPort, visit func() net.Conn) {
		t.Helper()
		if err := b.Arm(TCPKey(dst)); err != nil {
			t.Fatal(err)
		}
		if err := b.Beat(); err != nil {
			t.Fatal(err)
		}
		visitor := visit()
		conn, err := b.Listener().Accept()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
		defer cancel()
		app, err := b.DialApp(ctx, OriginalDst(conn))
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(app, conn); app.Close() })
		wg.Go(func() { _, _ = io.Copy(conn, app); conn.Close() })
		if got := ask(t, visitor); got != "app" {
			t.Errorf("%s answers", got)
		}
		visitor.Close()
		wg.Wait()
	}
	t.Run(NameProxy, func(t *testing.T) {
		p, front := newProxy(t, nil)
		use(t, p, meant, func() net.Conn { return dialHere(t, front) })
	})
	t.Run(NameSkLookup, func(t *testing.T) {
		r := newRig(t)
		r.app(t, "tcp", ":8080", "app")
		use(t, r.worker, r.v4(8080), func() net.Conn { return r.visit(t, r.v4(8080)) })
	})
}
