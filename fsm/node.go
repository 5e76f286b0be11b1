package fsm

import (
	"slices"

	commandv1 "trivet/proto/trivet/command/v1"
)

// maxName is the longest name of a node, namespace, workload or pod; it is
// that of DNS.
const maxName = 253

// checkName refuses names that cannot be part of a key or a line of text. It
// looks at bytes: what counts as a printable character differs between
// versions of Unicode, and with it between servers.
func checkName(what, name string) *commandv1.Result {
	switch {
	case name == "":
		return invalid("%s must not be empty", what)
	case len(name) > maxName:
		return invalid("%s must not be longer than %d bytes", what, maxName)
	case !validName(name):
		return invalid("%s %q must have neither slashes nor spaces nor control characters", what, name)
	}
	return nil
}

func validName(name string) bool {
	return name != "" && len(name) <= maxName && !slices.ContainsFunc([]byte(name), func(c byte) bool {
		return c <= ' ' || c == '/' || c == 0x7F
	})
}

func (t *tx) putNode(op *commandv1.PutNode) *commandv1.Result {
	name := op.GetNode().GetName()
	if res := checkName("node name", name); res != nil {
		return res
	}
	if res := t.actsAsNode(name); res != nil {
		return res
	}
	old, known := t.work.nodes.get(name)
	if t.since2() {
		if res := t.bounded("node information", op.GetNode(), maxNodeBytes); res != nil {
			return res
		}
		if limit := t.work.limits.GetNodes(); !known && uint32(t.work.nodes.rows.Len()) >= limit {
			return overLimit(ReasonLimitNodes, "nodes", "there are %d nodes, which is all there may be", limit)
		}
	}
	if known && old.GetBootId() == op.GetNode().GetBootId() && old.GetVersion() == op.GetNode().GetVersion() {
		t.record = recordNever // it has only connected again
	}
	row := edit(op.GetNode())
	if caller := t.cmd.GetIdentity(); caller != "" {
		row.Identity = caller
	}
	row.ReportedAt = t.now()
	put(t, &t.work.nodes, row)
	return withNode(row)
}

// removeNode forgets a node and the pods it reported.
func (t *tx) removeNode(op *commandv1.RemoveNode) *commandv1.Result {
	name := op.GetName()
	if res := t.actsAsNode(name); res != nil {
		return res
	}
	for _, row := range slices.Collect(t.work.WorkloadsOn(name)) {
		t.replacePods(row, withoutNode(row.GetPods(), name))
	}
	drop(t, &t.work.nodes, name)
	return done()
}
