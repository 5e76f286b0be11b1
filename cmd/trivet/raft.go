package main

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// peerView is one replica.
type peerView struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Leader  bool   `json:"leader"`
	Voter   bool   `json:"voter"`
}

func viewPeer(p *operatorv1.Peer) peerView {
	return peerView{ID: p.GetId(), Name: p.GetName(), Address: p.GetAddress(), Leader: p.GetLeader(), Voter: p.GetVoter()}
}

func newListPeersCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "list-peers",
		Short: "List the replicas",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			r, err := q.api.ListPeers(q.ctx, &operatorv1.ListPeersRequest{})
			if err != nil {
				return err
			}
			items := views(r.GetPeers(), viewPeer)
			p := a.Printer()
			if p.Format == render.JSON || p.Format == render.YAML {
				return render.Object(p, map[string]any{"items": items, "term": r.GetTerm()}, nil)
			}
			return render.List(p, items, 0, "replicas", []render.Column[peerView]{
				{Name: "NAME", Value: func(p peerView) string { return p.Name }},
				{Name: "ADDRESS", Value: func(p peerView) string { return p.Address }},
				{Name: "LEADER", Value: func(p peerView) string { return yesNo(p.Leader) }},
				{Name: "VOTER", Value: func(p peerView) string { return yesNo(p.Voter) }},
				{Name: "ID", Value: func(p peerView) string { return p.ID }},
			})
		}),
	}
}

// transferView is the outcome of a transfer of leadership.
type transferView struct {
	From   string `json:"from"`
	Leader string `json:"leader"`
}

func newTransferCmd(a *App) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "transfer-leadership",
		Short: "Hand leadership to another server",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			r, err := q.api.TransferLeadership(q.ctx, &operatorv1.TransferLeadershipRequest{To: to})
			if err != nil {
				return err
			}
			v := transferView{From: r.GetFrom(), Leader: r.GetLeader()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "leadership went from %s to %s\n", render.Clean(v.From), render.Clean(v.Leader))
				return err
			})
		}),
	}
	cmd.Flags().StringVar(&to, "to", "", "`name` or id of the new leader (default: the best one)")
	completeFlag(cmd, "to", a.serverNames())
	return cmd
}

// membershipTime is what a change of the configuration may take by default: a
// new server has to catch up before it gets a vote.
const membershipTime = 2 * time.Minute

func newAddPeerCmd(a *App) *cobra.Command {
	var id, replaces string
	cmd := &cobra.Command{
		Use:   "add-peer ADDRESS",
		Short: "Take a server that runs and waits into the cluster",
		Long: `Take the server that listens at ADDRESS (host:port) into the cluster. It is given
a vote once it has caught up. With --replaces, the server of that name or id
goes as soon as the new one has its vote.`,
		Args: oneArg("the ADDRESS of a server"),
		RunE: a.askFor(membershipTime, func(q query) error {
			r, err := q.api.AddPeer(q.ctx, &operatorv1.AddPeerRequest{Id: id, Address: q.args[0], Replaces: replaces})
			if err != nil {
				return err
			}
			return a.printPeer(r.GetPeer(), "is a voter now")
		}),
	}
	cmd.Flags().StringVar(&id, "id", "", "server `id` that must be found there")
	cmd.Flags().StringVar(&replaces, "replaces", "", "`name` or id of the server that it replaces")
	completeFlag(cmd, "replaces", a.serverNames())
	return cmd
}

func newRemovePeerCmd(a *App) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove-peer NAME",
		Short: "Take a server out of the cluster, by name or id",
		Args:  oneArg("the NAME or id of a server"),

		ValidArgsFunction: firstArgument(a.serverNames()),
		RunE: a.askFor(membershipTime, func(q query) error {
			r, err := q.api.RemovePeer(q.ctx, &operatorv1.RemovePeerRequest{Id: q.args[0], Force: force})
			if err != nil {
				return err
			}
			return a.printPeer(r.GetPeer(), "is no longer a member; stop it and do not start it again on its data")
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also when the servers that are left do not make a majority right now")
	return cmd
}

func (a *App) printPeer(p *operatorv1.Peer, what string) error {
	v := viewPeer(p)
	return render.Object(a.Printer(), v, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s (%s) %s\n", render.Clean(v.Name), v.ID, what)
		return err
	})
}

// raftInfoView is what one server knows of its own Raft.
type raftInfoView struct {
	Name           string `json:"name"`
	ID             string `json:"id"`
	State          string `json:"state"`
	Term           uint64 `json:"term"`
	Leader         string `json:"leader"`
	FirstIndex     uint64 `json:"firstIndex"`
	LastIndex      uint64 `json:"lastIndex"`
	CommitIndex    uint64 `json:"commitIndex"`
	AppliedIndex   uint64 `json:"appliedIndex"`
	Revision       uint64 `json:"revision"`
	SnapshotIndex  uint64 `json:"snapshotIndex"`
	LogStore       string `json:"logStore,omitempty"`
	LogBytes       uint64 `json:"logBytes,omitempty"`
	LastContact    string `json:"lastContact,omitempty"`
	CommandVersion uint32 `json:"commandVersion"`
	Schema         uint32 `json:"schema"`
	RestoreEpoch   uint64 `json:"restoreEpoch"`
	ClusterID      string `json:"clusterId"`
}

func newRaftInfoCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "info",
		Short: "Show what the answering server knows of its own Raft; name one with --server",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			r, err := q.api.RaftInfo(q.ctx, &operatorv1.RaftInfoRequest{})
			if err != nil {
				return err
			}
			v := raftInfoView{
				Name: r.GetName(), ID: r.GetId(), State: r.GetState(), Term: r.GetTerm(), Leader: r.GetLeaderName(),
				FirstIndex: r.GetFirstIndex(), LastIndex: r.GetLastIndex(), CommitIndex: r.GetCommitIndex(),
				AppliedIndex: r.GetAppliedIndex(), Revision: r.GetRevision(), SnapshotIndex: r.GetSnapshotIndex(),
				LogStore: r.GetLogStore(), LogBytes: r.GetLogBytes(), CommandVersion: r.GetCommandVersion(), Schema: r.GetSchema(),
				RestoreEpoch: r.GetRestoreEpoch(), ClusterID: r.GetClusterId(),
			}
			if d := time.Duration(r.GetLastContact()); d > 0 {
				v.LastContact = d.Round(time.Millisecond).String()
			}
			number := func(n uint64) string { return strconv.FormatUint(n, 10) }
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				for _, line := range [][2]string{
					{"server", v.Name + " (" + v.ID + ")"},
					{"state", v.State},
					{"leader", v.Leader},
					{"term", number(v.Term)},
					{"log", number(v.FirstIndex) + " to " + number(v.LastIndex)},
					{"committed", number(v.CommitIndex)},
					{"applied", number(v.AppliedIndex)},
					{"revision", number(v.Revision)},
					{"snapshot", number(v.SnapshotIndex)},
					{"log store", v.LogStore + ", " + render.Bytes(v.LogBytes)},
					{"last contact", v.LastContact},
					{"cluster", v.ClusterID},
					{"restore epoch", number(v.RestoreEpoch)},
				} {
					if _, err := fmt.Fprintf(w, "%-14s %s\n", line[0], render.Clean(line[1])); err != nil {
						return err
					}
				}
				return nil
			})
		}),
	}
}
