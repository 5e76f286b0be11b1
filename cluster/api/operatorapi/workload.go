package operatorapi

import (
	"context"
	"slices"

	"trivet/cluster/api/nodeapi"
	"trivet/fsm"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// ListNodes lists the nodes that have ever reported.
func (s *Service) ListNodes(ctx context.Context, req *operatorv1.ListNodesRequest) (*operatorv1.ListNodesResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	pods, workloads := make(map[string]uint32), make(map[string]uint32)
	for w := range root.Workloads {
		seen := make(map[string]bool)
		for _, p := range w.GetPods() {
			pods[p.GetNode()]++
			if !seen[p.GetNode()] {
				seen[p.GetNode()] = true
				workloads[p.GetNode()]++
			}
		}
	}
	out := &operatorv1.ListNodesResponse{Revision: root.Revision()}
	out.Nodes, out.NextPageToken, err = page(root.Nodes, req.GetPage(), (*commandv1.NodeRow).GetName,
		func(row *commandv1.NodeRow) (*operatorv1.Node, bool) {
			n := node(row)
			n.Connected = len(s.cfg.View.Servers(nodeapi.AttachmentID(row.GetName()))) > 0
			n.Pods, n.Workloads = pods[row.GetName()], workloads[row.GetName()]
			return n, true
		})
	return out, err
}

// ListWorkloads lists what the nodes reported.
func (s *Service) ListWorkloads(ctx context.Context, req *operatorv1.ListWorkloadsRequest) (*operatorv1.ListWorkloadsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListWorkloadsResponse{Revision: root.Revision()}
	out.Workloads, out.NextPageToken, err = page(root.Workloads, req.GetPage(),
		func(w *commandv1.WorkloadRow) string { return w.GetNamespace() + "/" + w.GetName() },
		func(w *commandv1.WorkloadRow) (*operatorv1.Workload, bool) {
			if ns := req.GetNamespace(); ns != "" && ns != w.GetNamespace() {
				return nil, false
			}
			return workload(root, w), true
		})
	return out, err
}

func workload(root *fsm.Root, w *commandv1.WorkloadRow) *operatorv1.Workload {
	x := &operatorv1.Workload{Namespace: w.GetNamespace(), Name: w.GetName(), Kind: w.GetKind(), Pods: uint32(len(w.GetPods()))}
	for range root.AgentsOf(w.GetNamespace(), w.GetName()) {
		x.Agents++
	}
	seen := make(map[string]bool)
	for _, p := range w.GetPods() {
		if !slices.Contains(x.Nodes, p.GetNode()) {
			x.Nodes = append(x.Nodes, p.GetNode())
		}
		for _, c := range p.GetContainers() {
			for _, port := range c.GetPorts() {
				key := c.GetName() + "/" + port.GetName() + "/" + port.GetProtocol()
				if !seen[key] {
					seen[key] = true
					x.Ports = append(x.Ports, &operatorv1.Port{Name: port.GetName(), Port: port.GetPort(), Protocol: port.GetProtocol(), Container: c.GetName()})
				}
			}
		}
	}
	for row := range root.InterceptsFor(w.GetNamespace(), w.GetName()) {
		if row.GetDisposition() == manager.InterceptDispositionType_ACTIVE && row.GetParent() == "" && !slices.Contains(x.InterceptedBy, row.GetSpec().GetClient()) {
			x.InterceptedBy = append(x.InterceptedBy, row.GetSpec().GetClient())
		}
	}
	return x
}

func node(row *commandv1.NodeRow) *operatorv1.Node {
	return &operatorv1.Node{
		Name: row.GetName(), Version: row.GetVersion(), StealBackend: row.GetStealBackend(), StealReason: row.GetStealReason(),
		Kernel: row.GetKernel(), BootId: row.GetBootId(), ReportedAt: stamp(row.GetReportedAt()),
	}
}
