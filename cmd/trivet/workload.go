package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// workloadView is something that can be intercepted.
type workloadView struct {
	Name          string     `json:"name"`
	Namespace     string     `json:"namespace"`
	Kind          string     `json:"kind,omitempty"`
	Pods          uint32     `json:"pods"`
	Agents        uint32     `json:"agents"`
	Ports         []portView `json:"ports"`
	Nodes         []string   `json:"nodes"`
	InterceptedBy []string   `json:"interceptedBy"`
}

type portView struct {
	Name      string `json:"name,omitempty"`
	Port      int32  `json:"port"`
	Protocol  string `json:"protocol,omitempty"`
	Container string `json:"container,omitempty"`
}

func (p portView) String() string {
	text := strconv.Itoa(int(p.Port))
	if p.Name != "" {
		text = p.Name + ":" + text
	}
	if p.Protocol != "" && !strings.EqualFold(p.Protocol, "tcp") {
		text += "/" + strings.ToUpper(p.Protocol)
	}
	return text
}

func viewWorkload(w *operatorv1.Workload) workloadView {
	v := workloadView{
		Name: w.GetName(), Namespace: w.GetNamespace(), Kind: w.GetKind(), Pods: w.GetPods(), Agents: w.GetAgents(),
		Nodes: append([]string{}, w.GetNodes()...), InterceptedBy: append([]string{}, w.GetInterceptedBy()...),
		Ports: []portView{},
	}
	for _, p := range w.GetPorts() {
		v.Ports = append(v.Ports, portView{Name: p.GetName(), Port: p.GetPort(), Protocol: p.GetProtocol(), Container: p.GetContainer()})
	}
	return v
}

func newWorkloadCmd(a *App) *cobra.Command {
	workload := group(&cobra.Command{Use: "workload", Short: "What runs on the nodes and can be intercepted"})
	workload.AddCommand(&cobra.Command{
		Use:   "list",
		Short: "List the workloads, of all namespaces unless --namespace is given",
		Args:  noArgs,
		RunE: a.ask(func(q query) error {
			rows, revision, err := pages(func(p *operatorv1.Page) ([]*operatorv1.Workload, string, uint64, error) {
				r, err := q.api.ListWorkloads(q.ctx, &operatorv1.ListWorkloadsRequest{Namespace: a.flags.namespace, Page: p})
				return r.GetWorkloads(), r.GetNextPageToken(), r.GetRevision(), err
			})
			if err != nil {
				return err
			}
			return render.List(a.Printer(), views(rows, viewWorkload), revision, "workloads", []render.Column[workloadView]{
				{Name: "NAME", Value: func(w workloadView) string { return w.Name }},
				{Name: "NAMESPACE", Value: func(w workloadView) string { return w.Namespace }},
				{Name: "KIND", Value: func(w workloadView) string { return w.Kind }},
				{Name: "PORTS", Value: func(w workloadView) string { return portsText(w.Ports) }},
				{Name: "AGENTS", Value: func(w workloadView) string { return fmt.Sprintf("%d/%d", w.Agents, w.Pods) }},
				{Name: "INTERCEPTED BY", Value: func(w workloadView) string { return strings.Join(w.InterceptedBy, ",") }},
				{Name: "NODES", Wide: true, Value: func(w workloadView) string { return strings.Join(w.Nodes, ",") }},
			})
		}),
	})
	workload.AddCommand(newWorkloadWatchCmd(a))
	return workload
}

func portsText(ports []portView) string {
	text := make([]string, len(ports))
	for i, p := range ports {
		text[i] = p.String()
	}
	return strings.Join(text, ",")
}
