package peersim

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// Dialer makes a connection to a manager. release is called when the peer needs
// it no more.
type Dialer func(ctx context.Context) (conn grpc.ClientConnInterface, release func(), err error)

// Shared is a Dialer for a connection that many peers use and somebody else
// closes.
func Shared(conn grpc.ClientConnInterface) Dialer {
	return func(context.Context) (grpc.ClientConnInterface, func(), error) { return conn, func() {}, nil }
}

// Rhythm has the times of a peer. Zero means what stock peers have.
type Rhythm struct {
	// Remain is the pause between keepalives: 5 s, and 60 s for newer agents.
	Remain time.Duration
	// Retry is the pause between attempts to begin a session or to open a
	// broken watch: 5 s.
	Retry time.Duration
	// Call bounds the calls of clients: 15 s. Those of agents have no bound.
	Call time.Duration
	// Depart bounds Depart: 1 s of agents, 3 s of clients.
	Depart time.Duration
	// Backoff is the first pause before a client opens a broken watch again,
	// 100 ms; it doubles to 3 s or, for pods and network, to 15 s.
	Backoff time.Duration
}

func (r Rhythm) or(d Rhythm) Rhythm {
	for _, f := range []struct{ v, d *time.Duration }{
		{&r.Remain, &d.Remain}, {&r.Retry, &d.Retry}, {&r.Call, &d.Call}, {&r.Depart, &d.Depart}, {&r.Backoff, &d.Backoff},
	} {
		if *f.v == 0 {
			*f.v = *f.d
		}
	}
	return r
}

// Longest pauses before a client opens a broken watch again.
const (
	shortBackoff = 3 * time.Second
	longBackoff  = 15 * time.Second
)

// Limits bound a peer. Zero means the default.
type Limits struct {
	// Record is how many events are kept; default 256.
	Record int
	// Tunnels is how many dial requests are worked off at the same time;
	// default 64. More are refused.
	Tunnels int
}

const defaultTunnels = 64

// peer is what all have in common.
type peer struct {
	*Record
	rhythm Rhythm

	ctx    context.Context // the peer's life
	stop   context.CancelFunc
	killed atomic.Bool
	done   chan struct{}
	slots  chan struct{} // one per tunnel in progress
}

func newPeer(ctx context.Context, r Rhythm, l Limits) *peer {
	if l.Tunnels <= 0 {
		l.Tunnels = defaultTunnels
	}
	p := &peer{Record: newRecord(l.Record), rhythm: r, done: make(chan struct{}), slots: make(chan struct{}, l.Tunnels)}
	p.ctx, p.stop = context.WithCancel(ctx)
	return p
}

// start runs the peer until its context ends.
func (p *peer) start(run func()) {
	go func() {
		defer close(p.done)
		run()
	}()
}

// Close makes the peer leave as a stock one does that is told to, with a
// Depart, and waits until it is gone.
func (p *peer) Close() {
	p.stop()
	<-p.done
}

// Kill makes the peer vanish as a process that is killed, and waits until it is
// gone. Its connection is released.
func (p *peer) Kill() {
	p.killed.Store(true)
	p.Close()
}

// pause waits; false when the peer is to end.
func (p *peer) pause(d time.Duration) bool { return pause(p.ctx, d) }

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// depart calls Depart and says whether it was answered.
func (p *peer) depart(m managersvc.ManagerClient, s *manager.SessionInfo) bool {
	if p.killed.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), p.rhythm.Depart)
	defer cancel()
	_, err := m.Depart(ctx, s)
	p.add(Event{Kind: Departed, Session: s.GetSessionId(), Err: err})
	return err == nil
}

// checkVersion asks who is there: peers give up on what is no version.
func checkVersion(ctx context.Context, m managersvc.ManagerClient) error {
	v, err := m.Version(ctx, new(emptypb.Empty))
	if err != nil {
		return err
	}
	if !semantic(v.GetVersion()) {
		return errors.New("the manager's version " + v.GetVersion() + " is no semantic version")
	}
	return nil
}

func semantic(v string) bool {
	v, _, _ = strings.Cut(strings.TrimPrefix(v, "v"), "+")
	v, _, _ = strings.Cut(v, "-")
	parts := strings.Split(v, ".")
	if len(parts) != 3 {
		return false
	}
	for _, p := range parts {
		if p == "" || strings.Trim(p, "0123456789") != "" {
			return false
		}
	}
	return true
}

// receive gives all messages of a stream to take; nil when the stream ended
// with OK.
func receive[M any](stream grpc.ServerStreamingClient[M], err error, take func(*M) error) error {
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = take(m)
		}
		if err != nil {
			return err
		}
	}
}

// Target makes the connection that a dial request asks for.
type Target func(ctx context.Context, to Conn) (io.ReadWriteCloser, error)

// echo is the default target: it says what it is told.
type echo struct {
	*io.PipeReader
	*io.PipeWriter
}

// Echo is a Target that sends back what it gets.
func Echo(context.Context, Conn) (io.ReadWriteCloser, error) {
	r, w := io.Pipe()
	return echo{r, w}, nil
}

func (e echo) Close() error { return errors.Join(e.PipeWriter.Close(), e.PipeReader.Close()) }

// answer works a dial request off in a goroutine of wg: it opens a tunnel with
// the same id for the session, dials, says how that went and joins the two.
func (p *peer) answer(ctx context.Context, wg *sync.WaitGroup, m managersvc.ManagerClient, session string, req *manager.DialRequest, target Target) {
	conn, err := ParseConn(req.GetConnId())
	p.add(Event{Kind: Asked, Session: session, Subject: conn.String(), Err: err})
	if err != nil {
		return
	}
	select {
	case p.slots <- struct{}{}:
	default:
		p.add(Event{Kind: Refused, Session: session, Subject: conn.String()})
		return
	}
	wg.Go(func() {
		defer func() { <-p.slots }()
		err := p.dial(ctx, m, session, req, conn, target)
		p.add(Event{Kind: Tunnelled, Session: session, Subject: conn.String(), Err: err})
	})
}

func (p *peer) dial(ctx context.Context, m managersvc.ManagerClient, session string, req *manager.DialRequest, conn Conn, target Target) error {
	info := Info{
		Latency: time.Duration(req.GetRoundtripLatency()), DialTimeout: time.Duration(req.GetDialTimeout()),
		ConnID: req.GetConnId(), Session: session,
	}
	t, err := OpenTunnel(ctx, m, info, "")
	if err != nil {
		return err
	}
	defer t.Close()
	if target == nil {
		target = Echo
	}
	dctx, cancel := context.WithTimeout(ctx, max(info.DialTimeout, time.Second))
	defer cancel()
	local, err := target(dctx, conn)
	if err != nil {
		return errors.Join(err, t.Send(Frame{Code: DialReject}), t.CloseSend(), drain(t))
	}
	if err := t.Send(Frame{Code: DialOK}); err != nil {
		return errors.Join(err, local.Close())
	}
	_, _, err = t.serve(local)
	return errors.Join(err, drain(t))
}

// drain waits for the end of a tunnel whose sending side is closed, so that
// what was sent is not cut off.
func drain(t *Tunnel) error {
	for {
		if _, err := t.Recv(); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

func code(err error) codes.Code { return status.Code(err) }
