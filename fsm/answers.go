package fsm

import (
	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// bigAnswer is the size above which a server's answers keep only the name of
	// their row: the row itself is looked up when the command is repeated.
	bigAnswer = 4 << 10
	// maxAnswer is more than any answer of a server has, in canonical form: up to
	// bigAnswer, or the name of a row with message and hint.
	maxAnswer = 6 << 10
)

// memo returns what is kept of a result. A configuration value is left out:
// its writer has it, and a thousand of them would be half a gigabyte. Of a big
// row, a server's answer keeps only the name, because all callers of a server
// share the room for its answers.
func (t *tx) memo(w *writer, res *commandv1.Result) *commandv1.Result {
	if t.since2() && w.isServer() && proto.Size(res) > bigAnswer {
		return onlyName(res)
	}
	row := res.GetConfig()
	if len(row.GetValue()) == 0 {
		return edit(res)
	}
	row = edit(row)
	row.Value = nil
	kept := edit(res)
	kept.Row = &commandv1.Result_Config{Config: row}
	return kept
}

// onlyName returns a result whose row has nothing but its key.
func onlyName(res *commandv1.Result) *commandv1.Result {
	kept := edit(res)
	switch row := res.GetRow().(type) {
	case *commandv1.Result_Session:
		kept.Row = &commandv1.Result_Session{Session: &commandv1.SessionRow{Id: row.Session.GetId()}}
	case *commandv1.Result_Intercept:
		kept.Row = &commandv1.Result_Intercept{Intercept: &commandv1.InterceptRow{Id: row.Intercept.GetId()}}
	case *commandv1.Result_Node:
		kept.Row = &commandv1.Result_Node{Node: &commandv1.NodeRow{Name: row.Node.GetName()}}
	case *commandv1.Result_Workload:
		kept.Row = &commandv1.Result_Workload{Workload: &commandv1.WorkloadRow{Namespace: row.Workload.GetNamespace(), Name: row.Workload.GetName()}}
	case *commandv1.Result_Config:
		kept.Row = &commandv1.Result_Config{Config: &commandv1.ConfigRow{
			Key: row.Config.GetKey(), CreateRevision: row.Config.GetCreateRevision(), ModifyRevision: row.Config.GetModifyRevision(),
		}}
	case *commandv1.Result_Token:
		kept.Row = &commandv1.Result_Token{Token: &commandv1.TokenRow{Id: row.Token.GetId()}}
	case *commandv1.Result_Server:
		kept.Row = &commandv1.Result_Server{Server: &commandv1.ServerRow{Id: row.Server.GetId()}}
	case *commandv1.Result_Key:
		kept.Row = &commandv1.Result_Key{Key: &commandv1.KeyRow{Id: row.Key.GetId()}}
	case *commandv1.Result_Policy:
		kept.Row = &commandv1.Result_Policy{Policy: &commandv1.PolicyRow{Name: row.Policy.GetName()}}
	}
	return kept
}

// recall undoes onlyName: it puts the present row in the place of its name. A
// row that is gone meanwhile stays a name.
func (t *tx) recall(res *commandv1.Result) *commandv1.Result {
	switch row := res.GetRow().(type) {
	case *commandv1.Result_Session:
		res.Row = &commandv1.Result_Session{Session: present(&t.work.sessions, row.Session)}
	case *commandv1.Result_Intercept:
		res.Row = &commandv1.Result_Intercept{Intercept: present(&t.work.intercepts, row.Intercept)}
	case *commandv1.Result_Node:
		res.Row = &commandv1.Result_Node{Node: present(&t.work.nodes, row.Node)}
	case *commandv1.Result_Workload:
		res.Row = &commandv1.Result_Workload{Workload: present(&t.work.workloads, row.Workload)}
	case *commandv1.Result_Token:
		res.Row = &commandv1.Result_Token{Token: present(&t.work.tokens, row.Token)}
	case *commandv1.Result_Server:
		res.Row = &commandv1.Result_Server{Server: present(&t.work.servers, row.Server)}
	case *commandv1.Result_Key:
		res.Row = &commandv1.Result_Key{Key: present(&t.work.keys, row.Key)}
	case *commandv1.Result_Policy:
		res.Row = &commandv1.Result_Policy{Policy: present(&t.work.policies, row.Policy)}
	}
	return res
}

// present returns the row that the table has in the place of a name, which is a
// row without revisions; else the row itself.
func present[R protoRow](tb *table[R], row R) R {
	if row.GetCreateRevision() == 0 {
		if now, ok := tb.get(tb.kind.key(row)); ok {
			return now
		}
	}
	return row
}
