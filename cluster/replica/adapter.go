package replica

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// adapter is what Raft sees of the state machine.
type adapter struct {
	machine *fsm.Machine
	applied *waitList
	// fatal ends the process: a replica that cannot apply what its peers
	// applied must not go on serving.
	fatal func(error)
	// tracked knows which commands a restored snapshot has overtaken; nil in
	// tools that only read.
	tracked *trackedLog

	// mu is held while the state changes: by the goroutine on which Raft calls
	// the methods below, and by swap.
	mu sync.Mutex
	// failed: nothing is applied and no snapshot is taken after a failure,
	// because an entry is missing from the state. Guarded by mu.
	failed bool
}

var errFailed = errors.New("this replica could not apply an earlier entry")

// Apply decodes an entry and applies it. Raft calls it from one goroutine. What
// the state contains already, because it came from ahead of the log, is left
// out.
func (a *adapter) Apply(l *raft.Log) any {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed || l.Index <= a.machine.Root().Position().Index {
		return nil
	}
	entry := new(commandv1.Entry)
	if err := proto.Unmarshal(l.Data, entry); err != nil {
		return a.fail(fmt.Errorf("decode log entry %d of term %d: %w", l.Index, l.Term, err))
	}
	results, err := a.machine.Apply(fsm.Position{Index: l.Index, Term: l.Term}, entry)
	if err != nil {
		return a.fail(fmt.Errorf("apply log entry %d of term %d: %w", l.Index, l.Term, err))
	}
	a.reached(l.Index)
	return results
}

// reached publishes a new state; the caller holds mu.
func (a *adapter) reached(index uint64) {
	a.applied.advance(a.machine.Root().Revision(), index)
}

func (a *adapter) fail(err error) any {
	a.failed = true
	a.fatal(err)
	return nil
}

// Snapshot takes the current root; it costs nothing.
func (a *adapter) Snapshot() (raft.FSMSnapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed {
		return nil, errFailed
	}
	return &snapshot{a.machine.Snapshot()}, nil
}

// Restore replaces the state with a snapshot's. On failure the old state stays
// and Raft reports the error.
func (a *adapter) Restore(r io.ReadCloser) error {
	defer r.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.machine.Restore(r); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	a.failed = false
	a.reached(a.machine.Root().Position().Index)
	if a.tracked != nil {
		// Raft stores nothing while it waits for this. Commands stored so far are
		// in the snapshot or were undone by it; a reader must not wait for them.
		a.applied.pass(a.tracked.forget())
	}
	return nil
}

// swap replaces the state by another server's while nothing is applied. fetch
// gets the state as it is; the snapshot that it returns must be at or above
// that.
func (a *adapter) swap(fetch func(have *fsm.Root) (io.ReadCloser, error)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	have := a.machine.Root()
	r, err := fetch(have)
	if err != nil {
		return err
	}
	defer r.Close()
	// Decoded apart first: what is behind must not replace what is ahead.
	fresh := fsm.New(fsm.Options{RingSize: 1})
	if err := fresh.Restore(r); err != nil {
		return fmt.Errorf("decode the state of another server: %w", err)
	}
	if got := fresh.Root().Position(); got.Index < have.Position().Index {
		return fmt.Errorf("the other server's state is at entry %d, this one's at %d", got.Index, have.Position().Index)
	}
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := fresh.Snapshot().WriteTo(pw)
		written <- err
		pw.CloseWithError(err)
	}()
	err = a.machine.Restore(pr)
	pr.CloseWithError(err)
	if werr := <-written; err == nil && werr != nil {
		err = werr
	}
	if err != nil {
		return fmt.Errorf("take the state of another server over: %w", err)
	}
	a.failed = false
	a.reached(a.machine.Root().Position().Index)
	return nil
}

type snapshot struct{ s *fsm.Snapshot }

// Persist streams the snapshot into the sink.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := s.s.WriteTo(sink); err != nil {
		// The sink is broken already; its own error adds nothing.
		_ = sink.Cancel()
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	return sink.Close()
}

// Release is a no-op: the root is garbage once nobody points to it.
func (s *snapshot) Release() {}
