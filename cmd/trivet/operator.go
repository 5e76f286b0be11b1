package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

func newOperatorCmd(a *App) *cobra.Command {
	operator := group(&cobra.Command{Use: "operator", Short: "Look after the servers (role operator)"})
	raft := group(&cobra.Command{Use: "raft", Short: "The servers as replicas"})
	raft.AddCommand(newListPeersCmd(a), newTransferCmd(a))
	operator.AddCommand(raft, newDigestCmd(a), newBundleCmd(a), newProfileCmd(a))
	return operator
}

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
