package cluster

import (
	"context"

	"trivet/cluster/replica"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// gate is the replica as handlers write to it: closed until the first command
// of a new cluster is applied. That command brings the key of the payload
// hashes; a write applied before it would not be known again when repeated.
//
// It is closed too while this server's state differs from that of the others.
type gate struct {
	*replica.Replica
	machine  *fsm.Machine
	diverged func() bool
}

// ReadRevision implements engine.Replica.
func (g gate) ReadRevision(ctx context.Context) (uint64, error) {
	if g.diverged() {
		return 0, errDiverged()
	}
	return g.Replica.ReadRevision(ctx)
}

// Propose implements engine.Replica.
func (g gate) Propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	if g.diverged() {
		return nil, replica.ErrNotLeader
	}
	if g.machine.Root().Meta().GetClusterId() == "" {
		return nil, replica.ErrNotLeader
	}
	return g.Replica.Propose(ctx, cmds)
}
