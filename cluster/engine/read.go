package engine

import (
	"context"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/fault"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

// Level is how fresh a read has to be.
type Level int

// Levels of a read. Default is the zero value.
const (
	// Default never shows a caller less than it has seen before.
	Default Level = iota
	// Stale answers from the local state, with its revision.
	Stale
	// Linearizable shows every write acknowledged before the read began.
	Linearizable
)

// ParseLevel reads the value of the metadata "trivet-consistency".
func ParseLevel(s string) (Level, error) {
	switch s {
	case "", "default":
		return Default, nil
	case "stale":
		return Stale, nil
	case "linearizable":
		return Linearizable, nil
	}
	return 0, errs.New(codes.InvalidArgument, "BAD_CONSISTENCY", "consistency %s is not known", strconv.Quote(s)).
		WithHint("use stale, default or linearizable")
}

const (
	// catchUp bounds how long a default read waits for the local state before it
	// asks the leader.
	catchUp = 2 * time.Second
	// catchUpLeader bounds how long a read waits for the local state once the
	// leader has said how far it has to be.
	catchUpLeader = 5 * time.Second
	// readAttempt bounds one question to the leader. Many readers wait for it, so
	// a leader that does not answer is asked again soon.
	readAttempt = 2 * time.Second
)

// Read returns a state fresh enough for level. seen is the revision that the
// caller has seen already, 0 when it did not say.
func (e *Engine) Read(ctx context.Context, level Level, seen uint64) (*fsm.Root, error) {
	switch {
	case level == Stale, fault.Planted(fault.StaleRead):
		return e.Root(), nil
	case level == Default && seen > 0:
		wctx, cancel := context.WithTimeout(ctx, catchUp)
		err := e.cfg.Replica.WaitRevision(wctx, seen)
		cancel()
		if err == nil {
			return e.Root(), nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	rev, err := e.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	if seen > rev {
		// Everything that any server ever showed is at or below the leader's
		// revision.
		return nil, errs.New(codes.FailedPrecondition, "REVISION_AHEAD", "the caller has seen revision %d, the manager is at %d", seen, rev).
			WithHint("the state was restored from a backup, or the revision is another manager's: read without one")
	}
	wctx, cancel := context.WithTimeout(ctx, catchUpLeader)
	defer cancel()
	if err := e.cfg.Replica.WaitRevision(wctx, rev); err != nil {
		return nil, errs.New(codes.Unavailable, "BEHIND", "this server did not get to revision %d: %w", rev, err).
			WithHint("read from another server, or with --consistency stale")
	}
	e.caughtUp.Store(true)
	return e.Root(), nil
}

// ReadRevisionHere answers another server's question if this one leads.
func (e *Engine) ReadRevisionHere(ctx context.Context) (uint64, error) {
	rev, err := e.cfg.Replica.ReadRevision(ctx)
	return rev, transportError(err)
}

func (e *Engine) readRevision(ctx context.Context) (uint64, error) {
	return atLeader(ctx, e,
		func(ctx context.Context) (uint64, error) {
			ctx, cancel := context.WithTimeout(ctx, readAttempt)
			defer cancel()
			return e.cfg.Replica.ReadRevision(ctx)
		},
		func(ctx context.Context, c peersvc.PeerClient) (uint64, error) {
			ctx, cancel := context.WithTimeout(ctx, readAttempt)
			defer cancel()
			resp, err := c.ReadRevision(ctx, &peerv1.ReadRevisionRequest{Linearizable: true})
			return resp.GetRevision(), err
		}, retriableWrite)
}

// readRounds shares one question to the leader among all readers that arrived
// before it was asked.
type readRounds struct {
	e  *Engine
	wg sync.WaitGroup

	mu      sync.Mutex
	next    *readRound
	running bool
	closed  bool
}

type readRound struct {
	done chan struct{}
	rev  uint64
	err  error
}

func newReadRounds(e *Engine) *readRounds { return &readRounds{e: e} }

// close waits for the round that is under way; the engine's context ends it.
func (r *readRounds) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

func (r *readRounds) get(ctx context.Context) (uint64, error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return 0, errStopping()
	}
	if r.next == nil {
		r.next = &readRound{done: make(chan struct{})}
	}
	mine := r.next
	if !r.running {
		r.running = true
		// The round outlives the reader that started it, because others share
		// it; the engine waits for it.
		r.wg.Add(1)
		go r.run(r.e.ctx)
	}
	r.mu.Unlock()
	select {
	case <-mine.done:
		return mine.rev, mine.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (r *readRounds) run(ctx context.Context) {
	defer r.wg.Done()
	for {
		r.mu.Lock()
		cur := r.next
		r.next = nil
		if cur == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		cur.rev, cur.err = r.e.readRevision(ctx)
		switch {
		case cur.err == nil:
		case ctx.Err() != nil:
			cur.err = errStopping()
		default:
			cur.err = transportError(cur.err)
		}
		close(cur.done)
	}
}
