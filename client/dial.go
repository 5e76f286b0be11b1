package client

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	"trivet/tunnel"
)

const (
	// maxDialTime bounds what a DialRequest can ask for: it comes over the
	// wire, and each one in progress holds a slot.
	maxDialTime = 30 * time.Second
	// rejectTime is how long a refusal may take to get through.
	rejectTime = 2 * time.Second
	// startPoll is the pause between attempts to reach a process that is
	// being started.
	startPoll = 20 * time.Millisecond
)

// dials works DialRequests off: open a tunnel, dial the local process, join
// the two.
type dials struct {
	s     *Session
	ctx   context.Context // lives as long as the session
	queue chan dialJob
	slots chan struct{} // one per request in progress
	wg    sync.WaitGroup

	mu   sync.Mutex
	busy map[tunnel.ConnID]bool // guarded by mu; requests queued or in progress

	open                                                          atomic.Int64
	opened, refused, foreign, malformed, duplicate, lost, in, out atomic.Uint64
}

// dialJob is one valid DialRequest and the link that it came over.
type dialJob struct {
	id               tunnel.ConnID
	latency, timeout time.Duration
	link             *Link
}

func newDials(ctx context.Context, s *Session) *dials {
	return &dials{
		s: s, ctx: ctx,
		queue: make(chan dialJob, s.opts.MaxQueued),
		slots: make(chan struct{}, s.opts.MaxDials),
		busy:  map[tunnel.ConnID]bool{},
	}
}

func (d *dials) stats() SessionStats {
	return SessionStats{
		Open: d.open.Load(), Opened: d.opened.Load(), Refused: d.refused.Load(), Foreign: d.foreign.Load(),
		Malformed: d.malformed.Load(), Duplicate: d.duplicate.Load(), Lost: d.lost.Load(),
		BytesIn: d.in.Load(), BytesOut: d.out.Load(),
	}
}

// offer takes a request that came over link. It blocks while the queue is
// full, and with it the stream; false: ctx ended first.
func (d *dials) offer(ctx context.Context, r *manager.DialRequest, link *Link) bool {
	id, err := tunnel.ParseConnID(r.GetConnId())
	if err != nil {
		// Without an id there is no tunnel to refuse it by.
		d.malformed.Add(1)
		d.s.opts.Log.Warn("dial request ignored", "server", link.Server, "cause", err)
		return true
	}
	if !d.claim(id) {
		d.duplicate.Add(1)
		return true
	}
	job := dialJob{
		id: id, link: link,
		latency: clampTime(r.GetRoundtripLatency(), roundtripLatency),
		timeout: clampTime(r.GetDialTimeout(), dialTimeout),
	}
	select {
	case d.queue <- job:
		return true
	case <-ctx.Done():
		d.release(id)
		return false
	}
}

// clampTime reads a time off the wire, where nothing said means otherwise.
func clampTime(ns int64, otherwise time.Duration) time.Duration {
	if ns <= 0 {
		return otherwise
	}
	return min(time.Duration(ns), maxDialTime)
}

func (d *dials) claim(id tunnel.ConnID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.busy[id] {
		return false
	}
	d.busy[id] = true
	return true
}

func (d *dials) release(id tunnel.ConnID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.busy, id)
}

// run starts queued requests as slots get free, until ctx ends.
func (d *dials) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case job := <-d.queue:
			select {
			case <-ctx.Done():
				return
			case d.slots <- struct{}{}:
			}
			d.wg.Go(func() { d.serve(job) })
		}
	}
}

// wait returns when all connections have ended. run must have returned.
func (d *dials) wait() { d.wg.Wait() }

// serve handles one request from the tunnel's handshake to the end of the
// connection. It gives its slot back when the dial is over, however it went.
func (d *dials) serve(job dialJob) {
	// The stream outlives the session by the moment that a farewell takes.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(d.ctx))
	defer cancel()
	unhook := context.AfterFunc(d.ctx, cancel)
	stream, conn, it := d.connect(streamCtx, job)
	unhook()
	d.release(job.id)
	<-d.slots
	if conn == nil {
		return
	}
	d.open.Add(1)
	defer d.open.Add(-1)
	number := d.opened.Add(1)
	from := job.id.Source()
	name := it.spec.Name
	d.s.emit(Event{Kind: EventConnection, Intercept: name, From: from, ID: number})
	began := time.Now()
	stats, err := tunnel.Serve(d.ctx, stream, tunnel.Opener, conn, tunnel.Options{Datagram: job.id.Protocol() == tunnel.UDP})
	d.in.Add(stats.BytesIn)
	d.out.Add(stats.BytesOut)
	e := Event{
		Kind: EventClosed, Intercept: name, From: from, ID: number,
		BytesIn: stats.BytesIn, BytesOut: stats.BytesOut, Duration: time.Since(began),
	}
	if err != nil {
		e.Message, e.Err = errs.From(err).Message, err
	}
	d.s.emit(e)
}

// connect opens the tunnel and dials the local process. Without a connection
// it has told the other end so.
func (d *dials) connect(ctx context.Context, job dialJob) (*tunnel.ClientStream, net.Conn, *Intercept) {
	stream, err := d.openTunnel(ctx, job)
	if err != nil {
		// The other end has given up, or the link is gone.
		d.lost.Add(1)
		d.s.opts.Log.Info("tunnel not opened", "connection", job.id.String(), "cause", err)
		return nil, nil, nil
	}
	it := d.s.interceptFor(job.id)
	if it == nil {
		d.foreign.Add(1)
		d.s.emit(Event{
			Kind: EventRefused, From: job.id.Source(),
			Message: "no intercept of this session goes to " + job.id.Destination().String(),
		})
		d.reject(stream)
		return nil, nil, nil
	}
	conn, err := d.dialLocal(ctx, it, job)
	if err == nil {
		it.markUp()
		if err = stream.Send(tunnel.NewDialOK()); err == nil {
			return stream, conn, it
		}
		_ = conn.Close() // unused, nothing to lose
		d.lost.Add(1)
		return nil, nil, nil
	}
	if ctx.Err() != nil {
		return nil, nil, nil
	}
	d.refused.Add(1)
	message, hint := explainLocal(job.id.Destination(), err)
	d.s.emit(Event{
		Kind: EventRefused, Intercept: it.spec.Name, From: job.id.Source(), Message: message, Hint: hint, Err: err,
	})
	d.reject(stream)
	return nil, nil, nil
}

// openTunnel opens the tunnel through the server that asked for it or, when
// that server is on its way out or gone, through another one: the servers find
// each other's ends.
func (d *dials) openTunnel(ctx context.Context, job dialJob) (*tunnel.ClientStream, error) {
	openCtx, done := context.WithTimeout(ctx, job.latency+job.timeout)
	defer done()
	link := job.link
	var pause backoff
	for {
		stream, err := d.openOn(ctx, openCtx, link, job)
		if err == nil || errs.Code(err) != codes.Unavailable || !pause.wait(openCtx) {
			return stream, err
		}
		if link, err = d.s.pool.Await(openCtx); err != nil {
			return nil, err
		}
	}
}

// openOn makes one attempt; openCtx bounds it, ctx is the stream's.
func (d *dials) openOn(ctx, openCtx context.Context, link *Link, job dialJob) (*tunnel.ClientStream, error) {
	ctx, abort := context.WithCancel(ctx)
	raw, err := managersvc.NewManagerClient(link).Tunnel(ctx, grpc.ForceCodecV2(tunnel.Codec{}))
	if err != nil {
		abort()
		return nil, err
	}
	stream := tunnel.NewClientStream(raw, abort)
	if _, err := tunnel.Open(openCtx, stream, tunnel.StreamInfo{
		RoundtripLatency: job.latency, DialTimeout: job.timeout, ConnID: job.id, SessionID: d.s.ID(),
	}, ""); err != nil {
		abort()
		return nil, err
	}
	return stream, nil
}

// reject says DialReject and waits, for a moment, until it has got through:
// ending the stream at once would throw it away.
func (d *dials) reject(stream *tunnel.ClientStream) {
	if stream.Send(tunnel.NewDialReject()) != nil || stream.CloseSend() != nil {
		return
	}
	abort := time.AfterFunc(rejectTime, stream.Abort)
	defer abort.Stop()
	for {
		if _, err := stream.Recv(); err != nil {
			return
		}
	}
}

// interceptFor returns the intercept that names the connection's destination,
// nil if there is none.
func (s *Session) interceptFor(id tunnel.ConnID) *Intercept {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range s.intercepts {
		if !it.over && it.spec.takes(id.Destination(), id.Protocol().String(), it.protocol()) {
			return it
		}
	}
	return nil
}

// protocol is the intercept's, TCP until the manager has said. s.mu must be
// held.
func (it *Intercept) protocol() string {
	if p := it.info.GetSpec().GetProtocol(); p != "" {
		return p
	}
	return "TCP"
}
