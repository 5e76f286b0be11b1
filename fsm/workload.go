package fsm

import (
	"cmp"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// maxWorkloadBytes bounds a workload's row, which grows with every node that
// runs a pod of it.
const maxWorkloadBytes = 4 << 20

func workloadNotFound(namespace, name string) *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_NOT_FOUND, ReasonWorkloadNotFound,
		"workload %s/%s not found", namespace, name),
		"no node has reported it and it has no agent: check the name and the namespace")
}

// reportWorkloads replaces what one node said about workloads.
func (t *tx) reportWorkloads(op *commandv1.ReportWorkloads) *commandv1.Result {
	node := op.GetNode()
	reports, res := t.checkReport(op)
	if res != nil {
		return res
	}
	if limit := t.work.limits.GetWorkloadsPerNode(); t.since2() && uint32(len(reports)) > limit {
		return overLimit(ReasonLimitWorkloads, "workloadsPerNode", "node %q reports %d workloads, it may report %d", node, len(reports), limit)
	}
	keys := slices.Collect(maps.Keys(reports))
	for row := range t.work.WorkloadsOn(node) {
		if key := workloadKind.key(row); reports[key] == nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)

	rows := make([]*commandv1.WorkloadRow, len(keys))
	for i, key := range keys {
		old, _ := t.work.workloads.get(key)
		rows[i] = withReport(old, node, reports[key])
		if size := proto.Size(rows[i]); size > maxWorkloadBytes {
			return refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, ReasonTooLarge,
				"workload %s would take %d bytes, more than %d", key, size, maxWorkloadBytes)
		}
	}
	for _, row := range rows {
		t.storeWorkload(row)
	}
	return done()
}

func (t *tx) checkReport(
	op *commandv1.ReportWorkloads,
) (map[string]*commandv1.WorkloadReport, *commandv1.Result) {
	if res := checkName("node name", op.GetNode()); res != nil {
		return nil, res
	}
	if res := t.actsAsNode(op.GetNode()); res != nil {
		return nil, res
	}
	reports := make(map[string]*commandv1.WorkloadReport, len(op.GetWorkloads()))
	for _, w := range op.GetWorkloads() {
		if res := checkName("namespace", w.GetNamespace()); res != nil {
			return nil, res
		}
		if res := checkName("workload name", w.GetName()); res != nil {
			return nil, res
		}
		for _, pod := range w.GetPods() {
			if res := checkName("pod name", pod.GetName()); res != nil {
				return nil, res
			}
		}
		if t.since2() {
			if res := t.bounded("report", w, maxCommandBytes); res != nil {
				return nil, res
			}
		}
		key := workloadKey(w.GetNamespace(), w.GetName())
		if reports[key] != nil {
			return nil, invalid("workload %s is reported twice", key)
		}
		reports[key] = w
	}
	return reports, nil
}

// withReport returns a workload's row with one node's pods replaced. Either of
// the row and the report may be nil.
func withReport(
	old *commandv1.WorkloadRow, node string, report *commandv1.WorkloadReport,
) *commandv1.WorkloadRow {
	row := edit(old)
	row.Namespace = cmp.Or(row.GetNamespace(), report.GetNamespace())
	row.Name = cmp.Or(row.GetName(), report.GetName())
	row.Kind = cmp.Or(report.GetKind(), row.GetKind())
	row.Pods = withoutNode(old.GetPods(), node)
	for _, pod := range report.GetPods() {
		pod = edit(pod)
		pod.Node = node
		row.Pods = append(row.Pods, pod)
	}
	slices.SortStableFunc(row.Pods, comparePods)
	return row
}

func comparePods(a, b *commandv1.Pod) int {
	return cmp.Or(cmp.Compare(a.GetNode(), b.GetNode()), cmp.Compare(a.GetName(), b.GetName()),
		cmp.Compare(a.GetUid(), b.GetUid()))
}

func withoutNode(pods []*commandv1.Pod, node string) []*commandv1.Pod {
	out := make([]*commandv1.Pod, 0, len(pods))
	for _, pod := range pods {
		if pod.GetNode() != node {
			out = append(out, pod)
		}
	}
	return out
}

func (t *tx) replacePods(row *commandv1.WorkloadRow, pods []*commandv1.Pod) {
	row = edit(row)
	row.Pods = pods
	t.storeWorkload(row)
}

// storeWorkload stores a new row of a workload. One that has neither pods nor
// intercepts is removed, one that says nothing new is left as it is.
func (t *tx) storeWorkload(row *commandv1.WorkloadRow) {
	old, ok := t.work.Workload(row.GetNamespace(), row.GetName())
	if len(row.GetPods()) == 0 && !t.isIntercepted(row) {
		drop(t, &t.work.workloads, workloadKind.key(row))
		return
	}
	// The new row still has the revisions of the old one.
	if !ok || !proto.Equal(row, old) {
		put(t, &t.work.workloads, row)
	}
}

func (t *tx) isIntercepted(row *commandv1.WorkloadRow) bool {
	for range t.work.InterceptsFor(row.GetNamespace(), row.GetName()) {
		return true
	}
	return false
}

// dropIdleWorkload removes a workload that an intercept alone has kept.
func (t *tx) dropIdleWorkload(namespace, name string) {
	row, ok := t.work.Workload(namespace, name)
	if ok && len(row.GetPods()) == 0 && !t.isIntercepted(row) {
		drop(t, &t.work.workloads, workloadKind.key(row))
	}
}

// ensureAgent asks the nodes for agents in a workload's pods. A workload that
// brings its own agents needs none and has no row.
func (t *tx) ensureAgent(op *commandv1.EnsureAgent) *commandv1.Result {
	if _, res := t.clientSession(op.GetSessionId()); res != nil {
		return res
	}
	row, ok := t.work.Workload(op.GetNamespace(), op.GetName())
	switch {
	case !ok && t.hasAgents(op.GetNamespace(), op.GetName()):
		return done()
	case !ok:
		return workloadNotFound(op.GetNamespace(), op.GetName())
	case row.GetAgentWanted():
		return withWorkload(row)
	}
	row = edit(row)
	row.AgentWanted = true
	put(t, &t.work.workloads, row)
	return withWorkload(row)
}

// uninstallAgents takes the wish for agents back: of the workloads that are
// named, or of all in a namespace. Their intercepts stay and have no agent.
func (t *tx) uninstallAgents(op *commandv1.UninstallAgents) *commandv1.Result {
	if _, res := t.clientSession(op.GetSessionId()); res != nil {
		return res
	}
	if op.GetNamespace() == "" {
		return invalid("namespace must not be empty")
	}
	var rows []*commandv1.WorkloadRow
	for _, name := range op.GetNames() {
		row, ok := t.work.Workload(op.GetNamespace(), name)
		if !ok {
			return hinted(refuse(commandv1.Code_CODE_NOT_FOUND, ReasonWorkloadNotFound,
				"Workload %s.%s not found", name, op.GetNamespace()), "nothing was changed: check the name and the namespace")
		}
		rows = append(rows, row)
	}
	if len(op.GetNames()) == 0 {
		for row := range t.work.Workloads {
			if row.GetNamespace() == op.GetNamespace() {
				rows = append(rows, row)
			}
		}
	}
	for _, row := range rows {
		// The same name may be there twice.
		if row, _ = t.work.Workload(row.GetNamespace(), row.GetName()); !row.GetAgentWanted() {
			continue
		}
		row = edit(row)
		row.AgentWanted = false
		t.storeWorkload(row)
	}
	return done()
}
