package tunnel

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// testLimit bounds every wait for something that must happen.
const testLimit = 30 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// HTTP/2 windows as a server should have them: fixed, and that of a connection
// larger than those of all streams that a test stalls.
const (
	streamWindow = 256 << 10
	connWindow   = 16 << 20
)

// service is a manager that only has tunnels.
type service struct {
	managersvc.UnimplementedManagerServer
	handle func(managersvc.Manager_TunnelServer) error
}

func (s service) Tunnel(t managersvc.Manager_TunnelServer) error { return s.handle(t) }

// eachCodec runs f with gRPC's codec, with ours, and with ours on servers only.
func eachCodec(t *testing.T, f func(t *testing.T, c codecs)) {
	for name, c := range map[string]codecs{
		"default codec": {},
		"own codec":     {server: true, client: true},
		"mixed codecs":  {server: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}

type codecs struct{ server, client bool }

// serve starts a server and returns a connection to it.
func (c codecs) serve(t testing.TB, handle func(managersvc.Manager_TunnelServer) error) *grpc.ClientConn {
	t.Helper()
	lis := bufconn.Listen(1 << 20)
	opts := []grpc.ServerOption{
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
	}
	if c.server {
		opts = append(opts, grpc.ForceServerCodecV2(Codec{}))
	}
	srv := grpc.NewServer(opts...)
	managersvc.RegisterManagerServer(srv, service{handle: handle})
	stopped := make(chan error, 1)
	go func() { stopped <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	var call []grpc.CallOption
	if c.client {
		call = append(call, grpc.ForceCodecV2(Codec{}))
	}
	cc, err := grpc.NewClient("passthrough:///tunnel",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }),
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(connWindow),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(call...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// dial makes a client stream that ends with the test.
func dial(t testing.TB, cc grpc.ClientConnInterface) *ClientStream {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s, err := managersvc.NewManagerClient(cc).Tunnel(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return NewClientStream(s, cancel)
}

// open is dial and Open.
func open(t testing.TB, cc grpc.ClientConnInterface, si StreamInfo) *ClientStream {
	t.Helper()
	s := dial(t, cc)
	if _, err := Open(limited(t), s, si, ""); err != nil {
		t.Fatal(err)
	}
	return s
}

func limited(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// switchboard pairs streams by connection id and relays them.
type switchboard struct {
	opts  Options
	ctx   context.Context
	stats chan RelayStats // of each relay that ended

	mu      sync.Mutex
	waiting map[ConnID]*half
}

type half struct {
	stream Stream
	err    chan error
}

func newSwitchboard(ctx context.Context) *switchboard {
	return &switchboard{ctx: ctx, waiting: map[ConnID]*half{}, stats: make(chan RelayStats, 1000)}
}

func (b *switchboard) handle(s managersvc.Manager_TunnelServer) error {
	return b.join(s.Context(), s)
}

func (b *switchboard) join(ctx context.Context, s Stream) error {
	si, err := Accept(s)
	if err != nil {
		return err
	}
	b.mu.Lock()
	h := b.waiting[si.ConnID]
	if h == nil {
		h = &half{s, make(chan error, 1)}
		b.waiting[si.ConnID] = h
		b.mu.Unlock()
		select {
		case err := <-h.err:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	delete(b.waiting, si.ConnID)
	b.mu.Unlock()
	st := Relay(b.ctx, h.stream, s, b.opts)
	b.stats <- st
	h.err <- st.ErrA
	return st.ErrB
}

// pair opens two streams that a switchboard joins.
func pair(t testing.TB, ccA, ccB grpc.ClientConnInterface, port uint16) (a, b *ClientStream) {
	t.Helper()
	si := infoFor(port)
	a = open(t, ccA, si)
	si.SessionID = "client"
	return a, open(t, ccB, si)
}

func infoFor(port uint16) StreamInfo {
	si := contractInfo
	dst := si.ConnID.Destination()
	id, err := NewConnID(TCP, si.ConnID.Source(), netipAddrPort(dst, port))
	if err != nil {
		panic(err)
	}
	si.ConnID = id
	return si
}

// tcpPair returns the two ends of a loopback connection: the application's and
// the endpoint's.
func tcpPair(t testing.TB) (app, local *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	app, local = c.(*net.TCPConn), s.(*net.TCPConn)
	t.Cleanup(func() { app.Close(); local.Close() })
	if err := app.SetDeadline(time.Now().Add(2 * testLimit)); err != nil {
		t.Fatal(err)
	}
	return app, local
}

// served is a Serve that runs.
type served struct {
	cancel context.CancelCauseFunc
	stats  Stats
	err    error
	done   chan struct{}
}

func startServe(t testing.TB, s Stream, side Side, conn net.Conn, opts Options) *served {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &served{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.stats, r.err = Serve(ctx, s, side, conn, opts)
	}()
	t.Cleanup(func() { cancel(nil); <-r.done })
	return r
}

func (r *served) wait(t testing.TB) (Stats, error) {
	t.Helper()
	wait(t, r.done)
	return r.stats, r.err
}

func wait(t testing.TB, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(testLimit):
		t.Fatal("still running")
	}
}

func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(testLimit):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

// wantReset fails unless the application reads a reset, after any data.
func wantReset(t testing.TB, app net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, app); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the application read %d bytes and then %v, want a reset", n, err)
	}
}

// wantBroken fails unless the application, which may have read an end of data,
// cannot write any more.
func wantBroken(t testing.TB, app net.Conn) {
	t.Helper()
	chunk := make([]byte, 1<<10)
	for {
		_, err := app.Write(chunk)
		switch {
		case err == nil:
			continue
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
		default:
			t.Errorf("the application wrote until %v, want a broken connection", err)
		}
		return
	}
}

// wantFrame fails unless the next message has that code.
func wantFrame(t testing.TB, s Stream, c Code) Frame {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatalf("%v instead of %s", err, c)
	}
	f, err := ParseFrame(m.GetPayload())
	if err != nil || f.Code != c {
		t.Fatalf("got %s, %v instead of %s", f.Code, err, c)
	}
	return f
}

// wantHardEnd wants Disconnect, or the abort that follows it after a grace and
// can overtake it on a machine that is busy enough.
func wantHardEnd(t testing.TB, s Stream) {
	t.Helper()
	m, err := s.Recv()
	if errs.Code(err) == codes.Canceled {
		return
	}
	if err != nil {
		t.Fatalf("%v instead of %s or an abort", err, CodeDisconnect)
	}
	if f, err := ParseFrame(m.GetPayload()); err != nil || f.Code != CodeDisconnect {
		t.Fatalf("got %s, %v instead of %s", f.Code, err, CodeDisconnect)
	}
}

// fake is a Stream of channels, for tests on virtual time.
type fake struct {
	in   chan *manager.TunnelMessage // closed: io.EOF
	out  chan *manager.TunnelMessage
	done chan struct{}
	once sync.Once
}

func newFake() *fake {
	return &fake{
		in:   make(chan *manager.TunnelMessage),
		out:  make(chan *manager.TunnelMessage, 16),
		done: make(chan struct{}),
	}
}

func (f *fake) Send(m *manager.TunnelMessage) error {
	select {
	case f.out <- m:
		return nil
	case <-f.done:
		return errors.New("aborted")
	}
}

func (f *fake) Recv() (*manager.TunnelMessage, error) {
	select {
	case m, ok := <-f.in:
		if !ok {
			return nil, io.EOF
		}
		return m, nil
	case <-f.done:
		return nil, errors.New("aborted")
	}
}

func (f *fake) Abort() { f.once.Do(func() { close(f.done) }) }

// pipeConn is a net.Pipe end that can half close in name.
type pipeConn struct{ net.Conn }

func (pipeConn) CloseWrite() error { return nil }
