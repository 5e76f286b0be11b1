package replica

import (
	"errors"
	"fmt"
	"io"

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
	// failed belongs to the goroutine on which Raft calls the methods below.
	// After a failure nothing is applied and no snapshot is taken: an entry is
	// missing from the state.
	failed bool
}

var errFailed = errors.New("this replica could not apply an earlier entry")

// Apply decodes an entry and applies it. Raft calls it from one goroutine.
func (a *adapter) Apply(l *raft.Log) any {
	if a.failed {
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
	a.applied.advance(a.machine.Root().Revision(), l.Index)
	return results
}

func (a *adapter) fail(err error) any {
	a.failed = true
	a.fatal(err)
	return nil
}

// Snapshot takes the current root; it costs nothing.
func (a *adapter) Snapshot() (raft.FSMSnapshot, error) {
	if a.failed {
		return nil, errFailed
	}
	return &snapshot{a.machine.Snapshot()}, nil
}

// Restore replaces the state with a snapshot's. On failure the old state stays
// and Raft reports the error.
func (a *adapter) Restore(r io.ReadCloser) error {
	defer r.Close()
	if err := a.machine.Restore(r); err != nil {
		return fmt.Errorf("restore snapshot: %w", err)
	}
	root := a.machine.Root()
	a.applied.advance(root.Revision(), root.Position().Index)
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
