package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/client/clienttest"
	"trivet/internal/errs"
	"trivet/tunnel"
)

// connID is the id of a connection from port visitor of some host to target.
func connID(t *testing.T, visitor int, target string) []byte {
	t.Helper()
	id, err := tunnel.NewConnID(tunnel.TCP, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.5"), uint16(visitor)), netip.MustParseAddrPort(target))
	if err != nil {
		t.Fatal(err)
	}
	return id.Bytes()
}

// local is a process beside the client. Each connection it takes is handed to
// the test.
type local struct {
	lis   net.Listener
	conns chan net.Conn
}

func listenLocal(t *testing.T, addr string) *local {
	t.Helper()
	lis, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	l := &local{lis: lis, conns: make(chan net.Conn, 1024)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			l.conns <- c
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-done })
	return l
}

func (l *local) addr() string { return l.lis.Addr().String() }
func (l *local) port() int    { return l.lis.Addr().(*net.TCPAddr).Port }

func interceptTo(t *testing.T, s *Session, port int, change ...func(*InterceptSpec)) *Intercept {
	t.Helper()
	sp := spec()
	sp.LocalPort = port
	for _, c := range change {
		c(&sp)
	}
	it, err := s.Intercept(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	await(t, s, EventActive)
	return it
}

// code reads the next frame of a tunnel, as the manager sees it.
func code(t *testing.T, tun *clienttest.Tunnel) tunnel.Code {
	t.Helper()
	m, err := tun.Stream.Recv()
	if err != nil {
		t.Fatalf("tunnel ended: %v", err)
	}
	f, err := tunnel.ParseFrame(m.GetPayload())
	if err != nil {
		t.Fatal(err)
	}
	return f.Code
}

func TestConnectionReachesTheLocalProcess(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	interceptTo(t, s, l.port())
	id := connID(t, 40000, l.addr())
	f.Dial("s1", id)
	tun := receive(t, "a tunnel", f.Tunnels)
	if !bytes.Equal(tun.Info.ConnID.Bytes(), id) || tun.Info.SessionID != s.ID() || tun.Info.DialTimeout != 5*time.Second {
		t.Errorf("StreamInfo = %+v", tun.Info)
	}
	if c := code(t, tun); c != tunnel.CodeDialOK {
		t.Fatalf("first frame = %s, want DialOK", c)
	}
	conn := receive(t, "a local connection", l.conns)
	e := await(t, s, EventConnection)
	if e.From.String() != "10.0.0.5:40000" || e.Intercept != "api" {
		t.Errorf("event = %+v", e)
	}

	// A MiB each way, then both half closes.
	data := make([]byte, 1<<20)
	_, _ = rand.Read(data)
	go func() {
		for part := data; len(part) > 0; part = part[min(len(part), 10_000):] {
			if tun.Stream.Send(tunnel.NewNormal(part[:min(len(part), 10_000)])) != nil {
				return
			}
		}
		_ = tun.Stream.Send(tunnel.NewCloseSend())
	}()
	got, err := io.ReadAll(conn)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("local process read %d bytes, %v", len(got), err)
	}
	go func() {
		_, _ = conn.Write(data)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	var back []byte
	for {
		m, err := tun.Stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		back = append(back, m.GetPayload()[1:]...)
	}
	if !bytes.Equal(back, data) {
		t.Errorf("visitor got %d bytes", len(back))
	}
	tun.End <- nil
	e = await(t, s, EventClosed)
	if e.BytesIn != 1<<20 || e.BytesOut != 1<<20 || e.Err != nil || e.ID != 1 {
		t.Errorf("event = %+v", e)
	}
	_ = conn.Close()
	if st := s.Stats(); st.Opened != 1 || st.Open != 0 || st.BytesIn != 1<<20 || st.BytesOut != 1<<20 {
		t.Errorf("stats = %+v", st)
	}
}

func TestNobodyListensIsSaidAtOnce(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	_ = l.lis.Close()
	interceptTo(t, s, l.port())
	f.Dial("s1", connID(t, 1, l.addr()))
	tun := receive(t, "a tunnel", f.Tunnels)
	if c := code(t, tun); c != tunnel.CodeDialReject {
		t.Errorf("frame = %s, want DialReject", c)
	}
	if _, err := tun.Stream.Recv(); err != io.EOF {
		t.Errorf("after DialReject: %v, want a half close", err)
	}
	tun.End <- nil
	e := await(t, s, EventRefused)
	if e.Message != "nothing listens on "+l.addr() || e.Hint == "" {
		t.Errorf("event = %+v", e)
	}
	if st := s.Stats(); st.Refused != 1 {
		t.Errorf("stats = %+v", st)
	}
}

func TestOnlyOwnTargetsAreDialled(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	mine, other := listenLocal(t, "127.0.0.1:0"), listenLocal(t, "127.0.0.1:0")
	it := interceptTo(t, s, mine.port())
	refuse := func(id []byte) {
		t.Helper()
		f.Dial("s1", id)
		tun := receive(t, "a tunnel", f.Tunnels)
		if c := code(t, tun); c != tunnel.CodeDialReject {
			t.Errorf("frame = %s, want DialReject", c)
		}
		tun.End <- nil
		await(t, s, EventRefused)
	}
	refuse(connID(t, 1, other.addr()))
	udp, err := tunnel.NewConnID(tunnel.UDP, netip.MustParseAddrPort("10.0.0.5:1"), netip.MustParseAddrPort(mine.addr()))
	if err != nil {
		t.Fatal(err)
	}
	refuse(udp.Bytes())
	// Removed means removed.
	if err := it.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	refuse(connID(t, 2, mine.addr()))
	if st := s.Stats(); st.Foreign != 3 || st.Opened != 0 {
		t.Errorf("stats = %+v, want 3 foreign", st)
	}
	select {
	case <-other.conns:
		t.Error("a port that no intercept names was dialled")
	case <-mine.conns:
		t.Error("a removed intercept's port was dialled")
	default:
	}
}

func TestMalformedConnectionIDsAreIgnoredAndCounted(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	interceptTo(t, s, l.port())
	good := connID(t, 7, l.addr())
	badProtocol := bytes.Clone(good)
	badProtocol[12] = 1
	for _, id := range [][]byte{nil, {}, good[:12], append(bytes.Clone(good), 6), make([]byte, 4096), badProtocol} {
		f.Dial("s1", id)
	}
	f.Dial("s1", good) // the stream goes on
	tun := receive(t, "a tunnel", f.Tunnels)
	if c := code(t, tun); c != tunnel.CodeDialOK {
		t.Errorf("frame = %s, want DialOK", c)
	}
	if st := s.Stats(); st.Malformed != 6 {
		t.Errorf("malformed = %d, want 6", st.Malformed)
	}
	tun.End <- nil
}

func TestDialsInProgressAreBounded(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()), func(o *SessionOptions) { o.MaxQueued = 4 })
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	_ = l.lis.Close()
	// Nobody listens, and the process is said to be on its way: every dial
	// stays in progress until it is refused.
	interceptTo(t, s, l.port(), func(sp *InterceptSpec) { sp.StartGrace = time.Hour })
	const total = DefaultMaxDials + 100
	for i := range total {
		f.Dial("s1", connID(t, i+1, l.addr()))
	}
	var tunnels []*clienttest.Tunnel
	for range DefaultMaxDials {
		tunnels = append(tunnels, receive(t, "a tunnel", f.Tunnels))
	}
	select {
	case <-f.Tunnels:
		t.Fatalf("more than %d dials are in progress", DefaultMaxDials)
	case <-time.After(50 * time.Millisecond): // nothing happens, so nothing tells
	}
	if n := len(s.dials.slots); n != DefaultMaxDials {
		t.Errorf("%d slots are taken, want %d", n, DefaultMaxDials)
	}
	// The process comes up: all of them, and those that waited, get through.
	l2 := listenLocal(t, l.addr())
	for len(tunnels) < total {
		tunnels = append(tunnels, receive(t, "a tunnel", f.Tunnels))
	}
	for _, tun := range tunnels {
		if c := code(t, tun); c != tunnel.CodeDialOK {
			t.Fatalf("frame = %s, want DialOK", c)
		}
		_ = receive(t, "a local connection", l2.conns).Close()
		tun.End <- nil
	}
}

func TestOpenConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()), func(o *SessionOptions) { o.MaxConns = 2 })
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	interceptTo(t, s, l.port())
	for i, want := range []tunnel.Code{tunnel.CodeDialOK, tunnel.CodeDialOK, tunnel.CodeDialReject} {
		f.Dial("s1", connID(t, i+1, l.addr()))
		tun := receive(t, "a tunnel", f.Tunnels)
		if c := code(t, tun); c != want {
			t.Errorf("connection %d: %s, want %s", i+1, c, want)
		}
		if want == tunnel.CodeDialOK {
			await(t, s, EventConnection)
		}
		defer func() { tun.End <- nil }()
	}
}

func TestSecondRequestForTheSameConnectionIsIgnored(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	_ = l.lis.Close()
	interceptTo(t, s, l.port(), func(sp *InterceptSpec) { sp.StartGrace = time.Hour })
	id := connID(t, 1, l.addr())
	f.Dial("s1", id)
	first := receive(t, "a tunnel", f.Tunnels)
	f.Dial("s1", id) // while the first is being dialled
	f.Dial("s1", connID(t, 2, l.addr()))
	second := receive(t, "a tunnel", f.Tunnels)
	if second.Info.ConnID == first.Info.ConnID {
		t.Error("the same connection got a second tunnel")
	}
	if st := s.Stats(); st.Duplicate != 1 {
		t.Errorf("duplicates = %d, want 1", st.Duplicate)
	}
	first.End <- nil
	second.End <- nil
}

func TestTunnelThatBreaksResetsTheConnection(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	interceptTo(t, s, l.port())
	f.Dial("s1", connID(t, 1, l.addr()))
	tun := receive(t, "a tunnel", f.Tunnels)
	if c := code(t, tun); c != tunnel.CodeDialOK {
		t.Fatalf("frame = %s", c)
	}
	tun.End <- errs.New(codes.DeadlineExceeded, "TOO_LATE", "timeout while establishing bidipipe")
	e := await(t, s, EventClosed)
	if e.Err == nil {
		t.Errorf("event = %+v, want one with the cause", e)
	}
	conn := receive(t, "a local connection", l.conns)
	if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("local process read %v, want a reset: the data is not complete", err)
	}
}

func TestClosingTheSessionEndsItsConnections(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	l := listenLocal(t, "127.0.0.1:0")
	interceptTo(t, s, l.port())
	f.Dial("s1", connID(t, 1, l.addr()))
	tun := receive(t, "a tunnel", f.Tunnels)
	if c := code(t, tun); c != tunnel.CodeDialOK {
		t.Fatalf("frame = %s", c)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close(t.Context()) }()
	if c := code(t, tun); c != tunnel.CodeDisconnect {
		t.Errorf("frame = %s, want Disconnect", c)
	}
	tun.End <- nil
	if err := receive(t, "Close", closed); err != nil {
		t.Error(err)
	}
	conn := receive(t, "a local connection", l.conns)
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the local connection is still open")
	}
}

func TestListenerIsChecked(t *testing.T) {
	t.Parallel()
	l := listenLocal(t, "127.0.0.1:0")
	sp := spec()
	sp.LocalPort = l.port()
	if err := CheckListener(t.Context(), sp); err != nil {
		t.Errorf("with a listener: %v", err)
	}
	_ = l.lis.Close()
	err := CheckListener(t.Context(), sp)
	if e := errs.From(err); e.Reason != ReasonNobodyListens || e.Hint == "" {
		t.Errorf("without one: %v, hint %q", err, e.Hint)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if err := AwaitListener(ctx, sp); errs.Reason(err) != ReasonNobodyListens {
		t.Errorf("wait without one: %v", err)
	}
	waited := make(chan error, 1)
	go func() { waited <- AwaitListener(t.Context(), sp) }()
	listenLocal(t, l.addr())
	if err := receive(t, "the listener to be noticed", waited); err != nil {
		t.Error(err)
	}
}
