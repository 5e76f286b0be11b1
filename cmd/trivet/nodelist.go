package main

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// nodeView is one node.
type nodeView struct {
	Name         string     `json:"name"`
	Connected    bool       `json:"connected"`
	Version      string     `json:"version,omitempty"`
	StealBackend string     `json:"stealBackend"`
	StealReason  string     `json:"stealReason,omitempty"`
	Kernel       string     `json:"kernel,omitempty"`
	BootID       string     `json:"bootId,omitempty"`
	Workloads    uint32     `json:"workloads"`
	Pods         uint32     `json:"pods"`
	ReportedAt   *time.Time `json:"reportedAt,omitempty"`
}

func viewNode(n *operatorv1.Node) nodeView {
	return nodeView{
		Name: n.GetName(), Connected: n.GetConnected(), Version: n.GetVersion(),
		StealBackend: n.GetStealBackend(), StealReason: n.GetStealReason(), Kernel: n.GetKernel(), BootID: n.GetBootId(),
		Workloads: n.GetWorkloads(), Pods: n.GetPods(), ReportedAt: moment(n.GetReportedAt()),
	}
}

var nodeColumns = []render.Column[nodeView]{
	{Name: "NODE", Value: func(n nodeView) string { return n.Name }},
	{Name: "CONNECTED", Value: func(n nodeView) string { return yesNo(n.Connected) }},
	{Name: "STEAL", Value: func(n nodeView) string { return n.StealBackend }},
	{Name: "WORKLOADS", Value: func(n nodeView) string { return strconv.Itoa(int(n.Workloads)) }},
	{Name: "PODS", Value: func(n nodeView) string { return strconv.Itoa(int(n.Pods)) }},
	{Name: "VERSION", Value: func(n nodeView) string { return n.Version }},
	{Name: "KERNEL", Wide: true, Value: func(n nodeView) string { return n.Kernel }},
	{Name: "WHY NOT SK_LOOKUP", Wide: true, Value: func(n nodeView) string { return n.StealReason }},
}

func newNodeListCmd(a *App) *cobra.Command {
	node := group(&cobra.Command{Use: "node", Short: "The machines that workloads run on"})
	node.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the nodes",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			rows, revision, err := pages(func(p *operatorv1.Page) ([]*operatorv1.Node, string, uint64, error) {
				r, err := q.api.ListNodes(q.ctx, &operatorv1.ListNodesRequest{Page: p})
				return r.GetNodes(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(rows, viewNode), revision, "nodes", nodeColumns)
		}),
	})
	return node
}
