package replica

import (
	"context"
	"fmt"
	"sync"
)

// ReadRevision returns a revision such that a read at or past it is
// linearizable: leadership was confirmed by a quorum after the call began, and
// the leader has applied an entry of its own term. Only the leader can answer;
// others return ErrNotLeader.
func (r *Replica) ReadRevision(ctx context.Context) (uint64, error) {
	term := r.term.Load()
	if term == 0 {
		return 0, ErrNotLeader
	}
	index := r.raft.CommitIndex()
	last := r.tracked.lastCommand(term)
	if err := r.verifier.verify(ctx, term); err != nil {
		return 0, err
	}
	// Raft's own term too, because the notification of a change takes a moment:
	// if it is the same after the round, this replica has led from the barrier
	// until then, and index and last were those of a leader.
	if r.term.Load() != term || r.raft.CurrentTerm() != term {
		return 0, ErrNotLeader
	}
	// Everything of earlier terms was applied before the barrier passed; of this
	// term, commands are what the state machine will get to see.
	if err := r.adapter.applied.waitIndex(ctx, min(index, last)); err != nil {
		return 0, err
	}
	return r.cfg.Machine.Root().Revision(), nil
}

// verifier coalesces quorum rounds: callers that arrive while one is under way
// share the next one, which starts after they arrived.
type verifier struct {
	confirm func(ctx context.Context, term uint64) error

	mu      sync.Mutex
	running bool
	next    *round
	wg      sync.WaitGroup
	closed  bool
	ctx     context.Context // of the rounds; ended by close
	cancel  context.CancelFunc
}

// round is about the newest term that its callers lead in: a caller of an
// earlier one has lost leadership in between and finds out afterwards.
type round struct {
	term uint64
	done chan struct{}
	err  error
}

func newVerifier(confirm func(ctx context.Context, term uint64) error) *verifier {
	v := &verifier{confirm: confirm}
	v.ctx, v.cancel = context.WithCancel(context.Background())
	return v
}

func (v *verifier) close() {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.cancel()
	v.wg.Wait()
}

func (v *verifier) verify(ctx context.Context, term uint64) error {
	v.mu.Lock()
	if v.closed {
		v.mu.Unlock()
		return ErrClosed
	}
	if v.next == nil {
		v.next = &round{done: make(chan struct{})}
	}
	mine := v.next
	mine.term = max(mine.term, term)
	if !v.running {
		v.running = true
		v.wg.Add(1)
		go v.run()
	}
	v.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (v *verifier) run() {
	defer v.wg.Done()
	for {
		v.mu.Lock()
		cur := v.next
		v.next = nil
		if cur == nil {
			v.running = false
			v.mu.Unlock()
			return
		}
		v.mu.Unlock()
		if err := v.confirm(v.ctx, cur.term); err != nil {
			cur.err = fmt.Errorf("%w: %w", ErrNotLeader, err)
		}
		close(cur.done)
	}
}
