package actors

import (
	"context"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Replicator is the replicated state as the leader's actors see it. The server
// that leads implements it.
type Replicator interface {
	// Propose appends the commands to the log of this server, which must be
	// the leader, and returns their results once its own state machine has
	// applied them. After an error nothing, or all, of it may have happened.
	Propose(ctx context.Context, cmds ...*commandv1.Command) ([]*commandv1.Result, error)
	// Root is the newest state that this server has applied.
	Root() *fsm.Root
	// Watch returns the changes after the given revision.
	Watch(after uint64) *fsm.Cursor
	// ConfirmLeader returns nil once a quorum, asked after the call, still
	// takes this server for the leader. Without it nothing irreversible is
	// decided from what this server has not heard.
	ConfirmLeader(ctx context.Context) error
}
