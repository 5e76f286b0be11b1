package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"trivet/cluster/replica"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

const (
	touchEvery = 50 * time.Millisecond
	// touchBatch bounds one message; more go with the next.
	touchBatch = 4096
	// touchAttempt bounds one sending, so that a leader that hangs is asked
	// again soon after another one is elected.
	touchAttempt = 2 * time.Second
)

// touchBatcher collects keepalives and passes them on every 50 ms. A caller is
// answered once the leader has its keepalive; without a leader it is held,
// because an error would make older peers tear themselves down.
type touchBatcher struct {
	e      *Engine
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	pending map[string]*touchWait
	wake    chan struct{}
	closed  bool
}

type touchWait struct {
	activity int64
	done     chan struct{}
	err      error
}

func newTouchBatcher(e *Engine) *touchBatcher {
	ctx, cancel := context.WithCancel(context.Background())
	b := &touchBatcher{e: e, cancel: cancel, pending: make(map[string]*touchWait), wake: make(chan struct{}, 1)}
	b.wg.Add(1)
	go b.run(ctx)
	return b
}

func (b *touchBatcher) close() {
	b.cancel()
	b.wg.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for id, w := range b.pending {
		w.err = errStopping()
		close(w.done)
		delete(b.pending, id)
	}
}

// ErrUnknownSession is the answer to a keepalive of a session that the leader
// does not have: it has departed or expired, or the leader does not show it yet.
var ErrUnknownSession = errors.New("the leader does not know the session")

// Touch passes a session's keepalive to the leader and returns when it has it.
// lastActivity is zero for now. An error is ErrUnknownSession, or says why no
// leader has it.
func (e *Engine) Touch(ctx context.Context, session string, lastActivity time.Time) error {
	var at int64
	if !lastActivity.IsZero() {
		at = lastActivity.UnixNano()
	}
	b := e.touch
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return errStopping()
	}
	w := b.pending[session]
	if w == nil {
		w = &touchWait{done: make(chan struct{})}
		b.pending[session] = w
	}
	w.activity = max(w.activity, at)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *touchBatcher) run(ctx context.Context) {
	defer b.wg.Done()
	tick := time.NewTimer(touchEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return
		}
		tick.Reset(touchEvery)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		b.flush(ctx)
	}
}

func (b *touchBatcher) flush(ctx context.Context) {
	b.mu.Lock()
	taken := make(map[string]*touchWait, min(len(b.pending), touchBatch))
	for id, w := range b.pending {
		if len(taken) == touchBatch {
			break
		}
		taken[id] = w
		delete(b.pending, id)
	}
	more := len(b.pending) > 0
	b.mu.Unlock()
	if len(taken) == 0 {
		return
	}
	var unknown []string
	var err error
	for {
		if unknown, err = b.send(ctx, taken); err == nil {
			break
		}
		if ctx.Err() != nil {
			err = errStopping()
			break
		}
	}
	for _, id := range unknown {
		if w := taken[id]; w != nil {
			w.err = ErrUnknownSession
		}
	}
	for _, w := range taken {
		if err != nil {
			w.err = err
		}
		close(w.done)
	}
	if more {
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
}

var errNoToucher = errors.New("the leader is not ready for keepalives")

// send passes a batch to the leader; unknown are the sessions that it does not
// have.
func (b *touchBatcher) send(ctx context.Context, batch map[string]*touchWait) (unknown []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, touchAttempt)
	defer cancel()
	return atLeader(ctx, b.e,
		func(ctx context.Context) (unknown []string, err error) {
			t := b.e.currentToucher()
			if t == nil {
				return nil, errNoToucher
			}
			for id, w := range batch {
				if !t.Touch(id, activityTime(w.activity)) {
					unknown = append(unknown, id)
				}
			}
			return unknown, b.e.stillLeads(ctx)
		},
		func(ctx context.Context, c peersvc.PeerClient) ([]string, error) {
			req := &peerv1.TouchRequest{Touches: make([]*peerv1.Touch, 0, len(batch))}
			for id, w := range batch {
				req.Touches = append(req.Touches, &peerv1.Touch{SessionId: id, LastActivity: w.activity})
			}
			resp, err := c.Touch(ctx, req)
			return resp.GetUnknown(), err
		},
		func(error) bool { return true })
}

func activityTime(unixNano int64) time.Time {
	if unixNano == 0 {
		return time.Time{}
	}
	return time.Unix(0, unixNano)
}

// stillLeads confirms, by a quorum asked after the call, that this server leads.
// A keepalive is answered only then: one that was deposed without knowing, as
// after a pause, would take it and forget it, and its peer would rely on it. A
// leader that comes later gives everybody a full period.
func (e *Engine) stillLeads(ctx context.Context) error {
	_, err := e.cfg.Replica.ReadRevision(ctx)
	return err
}

// TouchHere takes other servers' keepalives if this one leads, and returns the
// sessions that it does not have.
func (e *Engine) TouchHere(ctx context.Context, touches []*peerv1.Touch) (unknown []string, err error) {
	t := e.currentToucher()
	if t == nil {
		return nil, transportError(replica.ErrNotLeader)
	}
	for _, x := range touches {
		if !t.Touch(x.GetSessionId(), activityTime(x.GetLastActivity())) {
			unknown = append(unknown, x.GetSessionId())
		}
	}
	return unknown, transportError(e.stillLeads(ctx))
}
