package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"
)

// restoreTimeout bounds how long a restore waits for Raft to take it.
const restoreTimeout = 30 * time.Second

// RestoreState replaces the state of the whole cluster by a snapshot of the
// state machine, on the leader. size is its length in bytes, position the log
// position in it. The caller has decoded it once already: Raft ends the process
// when it cannot be restored.
//
// It returns when a quorum has taken the snapshot. ErrUnknownOutcome: it may
// have been restored.
func (r *Replica) RestoreState(ctx context.Context, position Position, size int64, state io.Reader) error {
	if r.LeaderTerm() == 0 {
		return ErrNotLeader
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Index: position.Index, Term: position.Term, Size: size}
	done := make(chan error, 1)
	r.wg.Go(func() { done <- r.raft.Restore(meta, state, restoreTimeout) })
	select {
	case err := <-done:
		switch {
		case err == nil:
			r.clock.raise(r.cfg.Machine.Root().Meta().GetTime())
			return nil
		case errors.Is(err, raft.ErrNotLeader):
			return fmt.Errorf("restore: %w: %w", ErrNotLeader, err)
		case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrRaftShutdown):
			return fmt.Errorf("restore: %w: %w", ErrUnknownOutcome, err)
		}
		return fmt.Errorf("restore: %w", err)
	case <-ctx.Done():
		return fmt.Errorf("restore: %w: %w", ErrUnknownOutcome, ctx.Err())
	}
}
