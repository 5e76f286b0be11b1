package netns_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// threadNS returns the inode of the calling thread's namespace.
func threadNS(t *testing.T) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func TestDoVisitsAndReturns(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	home := threadNS(t)
	var inside uint64
	var first bool
	if err := ns.NS.Do(func() error {
		inside = threadNS(t)
		first = unix.Gettid() == unix.Getpid()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if inside != ns.NS.ID().Ino {
		t.Errorf("inside: namespace %d, want %d", inside, ns.NS.ID().Ino)
	}
	if first {
		t.Error("the visit ran on the process's first thread")
	}
	if now := threadNS(t); now != home {
		t.Errorf("after: namespace %d, want %d", now, home)
	}
}

// TestThreadsComeBackClean makes many visits and then looks at every thread
// of the process.
func TestThreadsComeBackClean(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	home := threadNS(t)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			ln, err := netns.Listen(context.Background(), ns.NS, "tcp", ":0")
			if err != nil {
				t.Error(err)
				return
			}
			ln.Close()
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		var st unix.Stat_t
		err := unix.Stat("/proc/self/task/"+task.Name()+"/ns/net", &st)
		if errors.Is(err, unix.ENOENT) {
			continue // it ended meanwhile
		}
		if err != nil {
			t.Fatal(err)
		}
		if st.Ino != home {
			t.Errorf("thread %s is in namespace %d, want %d", task.Name(), st.Ino, home)
		}
	}
}

func TestDoReturnsTheFunctionsError(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	want := errors.New("inner")
	if err := ns.NS.Do(func() error { return want }); err != want {
		t.Errorf("got %v, want %v", err, want)
	}
	if err := ns.NS.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("no error although the function never returned")
	}
}

func TestClosedHandleFails(t *testing.T) {
	netnstest.Require(t)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	h.Close()
	called := false
	if err := h.Do(func() error { called = true; return nil }); !errors.Is(err, os.ErrClosed) || called {
		t.Errorf("got %v (called %v), want ErrClosed and no call", err, called)
	}
	if _, err := h.File(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("File: %v, want ErrClosed", err)
	}
}

func TestOpenRefusesWhatIsNoNetworkNamespace(t *testing.T) {
	for _, path := range []string{"/dev/null", "/proc/self/ns/uts", "/no/such/file"} {
		if h, err := netns.Open(path); err == nil {
			h.Close()
			t.Errorf("%s was taken for a network namespace", path)
		}
	}
}

func TestIDsTellNamespacesApart(t *testing.T) {
	netnstest.Require(t)
	a, b := netnstest.New(t), netnstest.New(t)
	again, err := netns.Open(a.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	f, err := a.NS.File()
	if err != nil {
		t.Fatal(err)
	}
	handed, err := netns.FromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	defer handed.Close()
	if again.ID() != a.NS.ID() || handed.ID() != a.NS.ID() || a.NS.ID() == b.NS.ID() {
		t.Errorf("ids: a %v, by path %v, by file %v, b %v", a.NS.ID(), again.ID(), handed.ID(), b.NS.ID())
	}
}

func TestListenFamilies(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	for _, tc := range []struct {
		network, address string
		v4, v6           bool
	}{
		{"tcp", ":0", true, true},
		{"tcp", "[::]:0", true, true},
		{"tcp4", ":0", true, false},
		{"tcp6", ":0", false, true},
		{"tcp", "127.0.0.1:0", true, false},
		{"tcp", "[::1]:0", false, true},
	} {
		t.Run(tc.network+" "+tc.address, func(t *testing.T) {
			ln, err := netns.Listen(t.Context(), ns.NS, tc.network, tc.address)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			port := strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)
			for host, want := range map[string]bool{"127.0.0.1": tc.v4, "::1": tc.v6} {
				conn, err := netns.Dial(t.Context(), ns.NS, "tcp", net.JoinHostPort(host, port), nil)
				if err == nil {
					conn.Close()
				}
				if got := err == nil; got != want {
					t.Errorf("dial %s: reachable %v, want %v (%v)", host, got, want, err)
				}
			}
			if err := notMPTCP(ln); err != nil {
				t.Error(err)
			}
		})
	}
}

func notMPTCP(ln *net.TCPListener) error {
	rc, err := ln.SyscallConn()
	if err != nil {
		return err
	}
	var proto int
	var serr error
	if err := rc.Control(func(fd uintptr) {
		proto, serr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL)
	}); err != nil {
		return err
	}
	if serr == nil && proto != unix.IPPROTO_TCP {
		return errors.New("protocol " + strconv.Itoa(proto) + ", want TCP")
	}
	return serr
}

func TestAddressesMustBeLiteral(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	for _, tc := range []struct{ network, address string }{
		{"tcp", "localhost:80"},
		{"tcp", "127.0.0.1:http"},
		{"tcp4", "[::1]:80"},
		{"tcp6", "127.0.0.1:80"},
		{"udp", "127.0.0.1:80"},
		{"tcp", "127.0.0.1"},
	} {
		if conn, err := netns.Dial(t.Context(), ns.NS, tc.network, tc.address, nil); err == nil {
			conn.Close()
			t.Errorf("dial %s %s worked", tc.network, tc.address)
		} else if errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("dial %s %s was tried", tc.network, tc.address)
		}
		if ln, err := netns.Listen(t.Context(), ns.NS, tc.network, tc.address); err == nil {
			ln.Close()
			t.Errorf("listen %s %s worked", tc.network, tc.address)
		}
	}
}

func TestControlCanBindTheSource(t *testing.T) {
	netnstest.Require(t)
	visitor, pod := netnstest.New(t), netnstest.New(t)
	from, to := netnstest.Connect(t, visitor, pod)
	second := netip.MustParseAddr(from.V4.String() + "0") // 10.77.X.10
	visitor.AddAddress(t, from.Iface, netip.PrefixFrom(second, 24))
	ln, err := netns.Listen(t.Context(), pod.NS, "tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	home := threadNS(t)
	conn, err := netns.Dial(t.Context(), visitor.NS, "tcp4", netip.AddrPortFrom(to.V4, 80).String(),
		func(_, _ string, c syscall.RawConn) error {
			if now := threadNS(t); now != home {
				t.Errorf("control runs in namespace %d, want %d", now, home)
			}
			sa, err := netns.Sockaddr(netip.AddrPortFrom(second, 0))
			if err != nil {
				return err
			}
			var berr error
			if err := c.Control(func(fd uintptr) { berr = unix.Bind(int(fd), sa) }); err != nil {
				return err
			}
			return berr
		})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); got != second {
		t.Errorf("source %v, want %v", got, second)
	}
}

func TestControlErrorEndsTheDial(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	want := errors.New("no")
	conn, err := netns.Dial(t.Context(), ns.NS, "tcp", "127.0.0.1:80",
		func(string, string, syscall.RawConn) error { return want })
	if !errors.Is(err, want) {
		t.Errorf("got %v, %v, want %v", conn, err, want)
	}
}

// TestWaitingDialHoldsNoThread starts more dials that hang than there would be
// threads for.
func TestWaitingDialHoldsNoThread(t *testing.T) {
	netnstest.Require(t)
	visitor, pod := netnstest.New(t), netnstest.New(t)
	_, to := netnstest.Connect(t, visitor, pod)
	// A cut cable: the handshake gets no answer and no refusal.
	pod.SetUp(t, to.Iface, false)

	const dials = 200
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{}, dials)
	var wg sync.WaitGroup
	for range dials {
		wg.Go(func() {
			conn, err := netns.Dial(ctx, visitor.NS, "tcp", netip.AddrPortFrom(to.V4, 80).String(),
				func(string, string, syscall.RawConn) error { started <- struct{}{}; return nil })
			if err == nil {
				conn.Close()
				t.Error("dial over a cut cable worked")
			}
		})
	}
	for range dials {
		select {
		case <-started:
		case <-time.After(20 * time.Second):
			t.Fatal("dials wait for each other")
		}
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(tasks) >= dials {
		t.Errorf("%d threads for %d waiting dials", len(tasks), dials)
	}
	cancel()
	wg.Wait()
}

// TestDialDoesNotConnectToItself leaves the kernel one source port, the very
// one that is dialled: the socket connects to itself, and the dialer's own
// retry would make the next one in the wrong namespace.
func TestDialDoesNotConnectToItself(t *testing.T) {
	netnstest.Require(t)
	ns := netnstest.New(t)
	ns.Sysctl(t, "ipv4/ip_local_port_range", "50000 50000")
	conn, err := netns.Dial(t.Context(), ns.NS, "tcp", "127.0.0.1:50000", nil)
	if err == nil {
		t.Errorf("connected from %v to %v", conn.LocalAddr(), conn.RemoteAddr())
		conn.Close()
	} else if !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("got %v, want EADDRNOTAVAIL", err)
	}
}

func TestNewNamespaceIsEmpty(t *testing.T) {
	netnstest.Require(t)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if h.ID() == here.ID() {
		t.Fatal("the new namespace is the current one")
	}
	var names []string
	if err := h.Do(func() error {
		ifs, err := net.Interfaces()
		for _, i := range ifs {
			names = append(names, i.Name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(names) != 1 || names[0] != "lo" {
		t.Errorf("interfaces %v, want only lo", names)
	}
}

func BenchmarkDial(b *testing.B) {
	netnstest.Require(b)
	ns := netnstest.New(b)
	ln, err := netns.Listen(b.Context(), ns.NS, "tcp", ":0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	defer func() { ln.Close(); <-done }()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
	b.ReportAllocs()
	for b.Loop() {
		conn, err := netns.Dial(b.Context(), ns.NS, "tcp", address, nil)
		if err != nil {
			b.Fatal(err)
		}
		conn.Close()
	}
}
