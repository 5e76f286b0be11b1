package replica

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

var (
	// ErrNotLeader: this replica is not the leader; the command was not
	// applied and will not be.
	ErrNotLeader = errors.New("this server is not the leader")
	// ErrUnknownOutcome: the command may have been applied or may still be.
	// Send it again under the same number to find out.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
	// ErrBusy: the proposer's queue is full; the command was not applied.
	ErrBusy = errors.New("too many writes are waiting")
	// ErrTooLarge: the command exceeds what one log entry may hold.
	ErrTooLarge = errors.New("the command is too large")
	// ErrClosed: the replica is shutting down.
	ErrClosed = errors.New("this server is shutting down")
	// ErrForeignData: the data directory belongs to something else.
	ErrForeignData = errors.New("the data directory does not belong to this server")
)

// classify maps Raft's errors to what a caller must know: did it happen?
func classify(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return fmt.Errorf("%w: %w", ErrNotLeader, err)
	case errors.Is(err, raft.ErrRaftShutdown):
		// Shutdown can hit an entry that is already on its way.
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	default:
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
}
