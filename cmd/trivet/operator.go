package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func newOperatorCmd(a *App) *cobra.Command {
	operator := group(&cobra.Command{Use: "operator", Short: "Look after the servers (role operator)"})
	raft := group(&cobra.Command{Use: "raft", Short: "The servers as replicas"})
	raft.AddCommand(newListPeersCmd(a), newAddPeerCmd(a), newRemovePeerCmd(a), newTransferCmd(a), newRaftInfoCmd(a))
	snapshot := group(&cobra.Command{Use: "snapshot", Short: "The whole state as a file"})
	snapshot.AddCommand(newSnapshotSaveCmd(a), newSnapshotRestoreCmd(a), newSnapshotInspectCmd(a))
	limits := group(&cobra.Command{Use: "limits", Short: "What one identity, and the cluster, may hold in the state"})
	limits.AddCommand(newLimitsGetCmd(a), newLimitsSetCmd(a))
	operator.AddCommand(raft, snapshot, limits, newClusterConfigCmd(a), newDigestCmd(a), newBundleCmd(a), newProfileCmd(a), newRecoverCmd(a), newStateCmd(a))
	return operator
}

// pause waits; false: ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
