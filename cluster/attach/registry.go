package attach

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"trivet/proto/telepresence/manager"
)

// dialQueue bounds the dial requests that wait for one slow dial stream. Each
// stands for a connection that somebody holds open meanwhile.
const dialQueue = 256

var (
	// ErrNotAttached: this server holds no dial stream of the session.
	ErrNotAttached = errors.New("the session has no dial stream here")
	// ErrQueueFull: the dial stream does not drain.
	ErrQueueFull = errors.New("the session's dial stream does not keep up")
)

// Attachment says which streams of one session are open on one server.
type Attachment struct {
	SessionID string
	// DialStreams say that their owner is there: all of them can carry a request
	// to dial, but for those that OpenOwner counts. WatchStreams say neither.
	DialStreams, WatchStreams int
	// EndedByPeer: no stream is left, and the peer ended the last one itself.
	EndedByPeer bool
}

// Registry holds this server's streams. The zero value is not usable.
type Registry struct {
	mu       sync.Mutex
	sessions map[string]*entry
	subs     map[*Subscription]struct{}
	refused  atomic.Uint64
}

type entry struct {
	dials   []*Dialer
	owners  int
	watches int
	ended   bool
}

// NewRegistry returns an empty registry.
func NewRegistry() *Registry {
	return &Registry{sessions: make(map[string]*entry), subs: make(map[*Subscription]struct{})}
}

// Dialer is one open dial stream. Most of them have nothing to send most of
// the time, so an empty queue takes no memory.
type Dialer struct {
	reg     *Registry
	session string
	ready   chan struct{}
	queue   []*manager.DialRequest // guarded by reg.mu
	once    sync.Once
}

// Ready delivers when there is something to Take.
func (d *Dialer) Ready() <-chan struct{} { return d.ready }

// Take returns what the stream has to send, oldest first.
func (d *Dialer) Take() []*manager.DialRequest {
	d.reg.mu.Lock()
	defer d.reg.mu.Unlock()
	out := d.queue
	d.queue = nil
	return out
}

// Close removes the stream; endedByPeer says that the peer, not this server,
// ended it. Further calls do nothing.
func (d *Dialer) Close(endedByPeer bool) {
	d.once.Do(func() {
		d.reg.change(d.session, func(e *entry) {
			for i, x := range e.dials {
				if x == d {
					e.dials = append(e.dials[:i:i], e.dials[i+1:]...)
					break
				}
			}
			e.ended = endedByPeer
		})
	})
}

// OpenDial registers a dial stream of a session. The caller must Close it.
func (r *Registry) OpenDial(session string) *Dialer {
	d := &Dialer{reg: r, session: session, ready: make(chan struct{}, 1)}
	r.change(session, func(e *entry) { e.dials = append(e.dials, d) })
	return d
}

// OpenWatch registers another stream of a session and returns the function
// that removes it.
func (r *Registry) OpenWatch(session string) (closeWatch func(endedByPeer bool)) {
	return r.open(session, func(e *entry, n int) { e.watches += n })
}

// OpenOwner is OpenWatch for peers that have no dial stream here, because agents
// reach them otherwise: that they are there shows by their other streams.
func (r *Registry) OpenOwner(session string) (closeWatch func(endedByPeer bool)) {
	return r.open(session, func(e *entry, n int) { e.owners += n })
}

func (r *Registry) open(session string, count func(e *entry, n int)) func(endedByPeer bool) {
	r.change(session, func(e *entry) { count(e, 1) })
	var once sync.Once
	return func(endedByPeer bool) {
		once.Do(func() {
			r.change(session, func(e *entry) {
				count(e, -1)
				e.ended = endedByPeer
			})
		})
	}
}

// Offer queues a request on the session's newest dial stream: after a
// reconnect the older one may be dead without this server knowing.
func (r *Registry) Offer(session string, req *manager.DialRequest) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.sessions[session]
	if e == nil || len(e.dials) == 0 {
		return ErrNotAttached
	}
	d := e.dials[len(e.dials)-1]
	if len(d.queue) >= dialQueue {
		r.refused.Add(1)
		return ErrQueueFull
	}
	d.queue = append(d.queue, req)
	select {
	case d.ready <- struct{}{}:
	default:
	}
	return nil
}

// Refused counts dial requests that found a full queue.
func (r *Registry) Refused() uint64 { return r.refused.Load() }

func (r *Registry) change(session string, f func(*entry)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.sessions[session]
	if e == nil {
		e = new(entry)
		r.sessions[session] = e
	}
	f(e)
	for s := range r.subs {
		s.mark(session, e.attachment(session))
	}
	if len(e.dials) == 0 && e.owners == 0 && e.watches == 0 {
		delete(r.sessions, session)
	}
}

func (e *entry) attachment(session string) Attachment {
	a := Attachment{SessionID: session, DialStreams: len(e.dials) + e.owners, WatchStreams: e.watches}
	a.EndedByPeer = e.ended && a.DialStreams == 0 && a.WatchStreams == 0
	return a
}

// Subscription follows a registry. Changes of one session that come faster
// than the subscriber reads are merged, so it holds at most one per session.
type Subscription struct {
	reg     *Registry
	mu      sync.Mutex
	pending map[string]Attachment
	wake    chan struct{}
}

// Subscribe starts with everything that is open now.
func (r *Registry) Subscribe() *Subscription {
	s := &Subscription{reg: r, pending: make(map[string]Attachment), wake: make(chan struct{}, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, e := range r.sessions {
		s.pending[id] = e.attachment(id)
	}
	s.wake <- struct{}{}
	r.subs[s] = struct{}{}
	return s
}

func (s *Subscription) mark(session string, a Attachment) {
	s.mu.Lock()
	s.pending[session] = a
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for changes; the first call returns at once.
func (s *Subscription) Next(ctx context.Context) ([]Attachment, error) {
	select {
	case <-s.wake:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Attachment, 0, len(s.pending))
	for _, a := range s.pending {
		out = append(out, a)
	}
	clear(s.pending)
	return out, nil
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.reg.mu.Lock()
	defer s.reg.mu.Unlock()
	delete(s.reg.subs, s)
}
