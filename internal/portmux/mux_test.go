package portmux

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/pki"
)

func TestRawHandlerSeesEveryByte(t *testing.T) {
	t.Parallel()
	_, m := start(t, Options{})
	got := make(chan string, 1)
	m.Raw(RelayPreamble, func(nc net.Conn) {
		defer nc.Close()
		if _, ok := nc.(interface{ NetConn() net.Conn }).NetConn().(*net.TCPConn); !ok {
			t.Errorf("no TCP connection under %T", nc)
		}
		b, err := io.ReadAll(nc)
		if err != nil {
			t.Errorf("read: %v", err)
		}
		got <- string(b)
	})
	const sent = "TRVT\x01 and what follows"
	nc := dial(t, m)
	for i := range len(sent) { // as unkind as a network can be
		if _, err := nc.Write([]byte{sent[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if s := <-got; s != sent {
		t.Errorf("handler saw %q, want %q", s, sent)
	}
	closed(t, nc)
	eventually(t, "nothing open", func() bool { return m.Stats().Open == 0 })
	if s := m.Stats(); s.Raw[RelayPreamble] != 1 || len(rejected(m)) > 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestRawHandlersComeAndGo(t *testing.T) {
	t.Parallel()
	_, m := start(t, Options{})
	answer := func(s string) func(net.Conn) {
		return func(nc net.Conn) {
			defer nc.Close()
			_, _ = io.CopyN(io.Discard, nc, 6)
			_, _ = io.WriteString(nc, s)
		}
	}
	ask := func(s string) string {
		nc := dial(t, m)
		if _, err := io.WriteString(nc, s); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(nc)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
		return string(b)
	}
	m.Raw(RelayPreamble, answer("short"))
	m.Raw("TRVT2", answer("long"))
	var got []string
	for _, s := range []string{"TRVT1.", "TRVT2."} {
		got = append(got, ask(s))
	}
	m.Raw(RelayPreamble, nil)
	got = append(got, ask("TRVT1."))
	if diff := cmp.Diff([]string{"short", "long", ""}, got); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[Reason]uint64{ReasonNoHandler: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	for _, bad := range []string{"", "\x16ab"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Raw(%q) did not panic", bad)
				}
			}()
			m.Raw(bad, answer(""))
		}()
	}
}

func TestCloseEndsWhatIsBeingRouted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := New(listen(t), c.server(), Options{HandshakeTimeout: time.Hour})
	l := m.ALPN(alpnH2)
	entered := make(chan struct{})
	m.Raw(RelayPreamble, func(nc net.Conn) {
		close(entered)
		_, _ = io.Copy(io.Discard, nc) // until Close of the mux
		_ = nc.Close()
	})
	serve(t, m)

	silent, half, raw := dial(t, m), dial(t, m), dial(t, m)
	for nc, s := range map[net.Conn]string{half: "\x16\x03\x01\x02\x00\x01", raw: RelayPreamble} {
		if _, err := io.WriteString(nc, s); err != nil {
			t.Fatal(err)
		}
	}
	handed := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	server := accept(t, l)
	queued := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	eventually(t, "queued", func() bool { return m.Stats().Queued[alpnH2] == 1 })
	<-entered

	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	for _, nc := range []net.Conn{silent, half, raw, queued.NetConn()} {
		closed(t, nc)
	}
	echo(t, handed, server) // is ours, not the mux's
	if diff := cmp.Diff(map[Reason]uint64{ReasonShutdown: 2}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	if s := m.Stats(); s.Open != 1 || s.Pending != 0 {
		t.Errorf("stats %+v", s)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := m.ALPN(alpnRaft).Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a listener made after Close: %v", err)
	}
	if _, err := net.Dial("tcp", m.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestCloseInterruptsAccept(t *testing.T) {
	t.Parallel()
	_, m := start(t, Options{})
	l := m.ALPN(alpnH2)
	done := make(chan error, 1)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	m := New(listen(t), c.server(), Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Serve(ctx) }()
	nc := dial(t, m)
	eventually(t, "being routed", func() bool { return m.Stats().Pending == 1 })
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
	closed(t, nc)
}

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)

	m := New(listen(t), c.server(), Options{})
	m.ALPN("trivet-watch/1")
	if err := m.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "trivet-watch/1") {
		t.Errorf("a listener that nobody can reach: %v", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.Serve(context.Background()); err != nil {
		t.Errorf("Serve after Close: %v", err)
	}

	m = New(listen(t), c.server(), Options{})
	serve(t, m)
	dial(t, m)
	eventually(t, "served", func() bool { return m.Stats().Accepted == 1 })
	if err := m.Serve(context.Background()); err == nil {
		t.Error("served twice")
	}
}

func TestListenerClosesAlone(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{})
	h2, raft := m.ALPN(alpnH2), m.ALPN(alpnRaft)
	if m.ALPN(alpnH2) != h2 {
		t.Error("a second listener for the same name")
	}
	if err := errors.Join(h2.Close(), h2.Close()); err != nil {
		t.Fatal(err)
	}
	closed(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)))
	if diff := cmp.Diff(map[Reason]uint64{ReasonALPN: 1}, rejected(m)); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
	echo(t, dialTLS(t, m, c.client(pki.RoleServer, alpnRaft)), accept(t, raft))

	again := m.ALPN(alpnH2)
	if again.Addr() != m.Addr() {
		t.Errorf("address %v, want %v", again.Addr(), m.Addr())
	}
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, again))
}

// flaky fails to accept with the given errors first.
type flaky struct {
	net.Listener
	errs chan error
}

func (f *flaky) Accept() (net.Conn, error) {
	select {
	case err := <-f.errs:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	default:
		return f.Listener.Accept()
	}
}

func TestAcceptOutlivesLackOfResources(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ln := &flaky{listen(t), make(chan error, 8)}
	passing := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED}
	for _, err := range passing {
		ln.errs <- err
	}
	m := New(ln, c.server(), Options{})
	l := m.ALPN(alpnH2)
	serve(t, m)
	echo(t, dialTLS(t, m, c.client(pki.RoleClient, alpnH2)), accept(t, l))
	if n := m.Stats().AcceptErrors; n != uint64(len(passing)) {
		t.Errorf("%d accept errors counted, want %d", n, len(passing))
	}
}

func TestCloseInterruptsBackoff(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	ln := &flaky{listen(t), make(chan error)}
	m := New(ln, c.server(), Options{})
	stop := make(chan struct{})
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for {
			select {
			case ln.errs <- syscall.EMFILE:
			case <-stop:
				return
			}
		}
	}()
	serve(t, m)
	// The loop blocks in a real accept as soon as it comes before the next
	// error; a connection brings it back.
	dial(t, m)
	eventually(t, "an error", func() bool { dial(t, m); return m.Stats().AcceptErrors >= 3 })
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	<-fed
}

func TestBrokenPortEndsServe(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, broken := range []error{syscall.EBADF, syscall.EINVAL, errors.New("no errno")} {
		ln := &flaky{listen(t), make(chan error, 1)}
		ln.errs <- broken
		m := New(ln, c.server(), Options{})
		l := m.ALPN(alpnH2)
		if err := m.Serve(context.Background()); !errors.Is(err, broken) {
			t.Errorf("Serve: %v, want %v", err, broken)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after that: %v", err)
		}
	}
}

// deadlines records what is set on the connections of a listener.
type deadlines struct {
	net.Listener
	last *atomic.Value // time.Time
}

type deadlineConn struct {
	net.Conn
	last *atomic.Value
}

func (d deadlines) Accept() (net.Conn, error) {
	nc, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return deadlineConn{nc, d.last}, nil
}

func (d deadlineConn) SetDeadline(t time.Time) error {
	d.last.Store(t)
	return d.Conn.SetDeadline(t)
}

func TestNoDeadlineIsLeftOnHandedOverConnections(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var last atomic.Value
	m := New(deadlines{listen(t), &last}, c.server(), Options{})
	l := m.ALPN(alpnH2)
	checked := make(chan struct{})
	check := func() {
		if d, _ := last.Load().(time.Time); !d.IsZero() {
			t.Errorf("deadline %v", d)
		}
	}
	m.Raw(RelayPreamble, func(nc net.Conn) {
		check()
		_ = nc.Close()
		close(checked)
	})
	serve(t, m)

	dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	accept(t, l)
	if last.Load() == nil {
		t.Error("no deadline was ever set")
	}
	check()
	if _, err := io.WriteString(dial(t, m), RelayPreamble); err != nil {
		t.Fatal(err)
	}
	<-checked
}

func TestEarlyDataOfTheClientIsKept(t *testing.T) {
	t.Parallel()
	c, m := start(t, Options{})
	l := m.ALPN(alpnH2)
	tc := dialTLS(t, m, c.client(pki.RoleClient, alpnH2))
	want := strings.Repeat("early", 4<<10)
	if _, err := io.WriteString(tc, want); err != nil {
		t.Fatal(err)
	}
	if err := tc.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(accept(t, l))
	if err != nil || string(got) != want {
		t.Errorf("read %d bytes of %d: %v", len(got), len(want), err)
	}
}
