package fsm

import (
	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// tables is the whole state but for the meta row.
type tables struct {
	sessions   table[*commandv1.SessionRow]
	intercepts table[*commandv1.InterceptRow]
	nodes      table[*commandv1.NodeRow]
	workloads  table[*commandv1.WorkloadRow]
	identities table[*commandv1.IdentityRow]
	tokens     table[*commandv1.TokenRow]
	configs    table[*commandv1.ConfigRow]
	servers    table[*commandv1.ServerRow]
	writers    table[*writer]
	answers    table[*answer]
	keys       table[*commandv1.KeyRow]
	policies   table[*commandv1.PolicyRow]
	audit      table[*commandv1.AuditRow]
}

func newTables() tables {
	return tables{
		sessions:   newTable(sessionKind),
		intercepts: newTable(interceptKind),
		nodes:      newTable(nodeKind),
		workloads:  newTable(workloadKind),
		identities: newTable(identityKind),
		tokens:     newTable(tokenKind),
		configs:    newTable(configKind),
		servers:    newTable(serverKind),
		writers:    newTable(writerKind),
		answers:    newTable(answerKind),
		keys:       newTable(keyKind),
		policies:   newTable(policyKind),
		audit:      newTable(auditKind),
	}
}

func (t *tables) publish(prev *tables) tables {
	return tables{
		sessions:   t.sessions.publish(&prev.sessions),
		intercepts: t.intercepts.publish(&prev.intercepts),
		nodes:      t.nodes.publish(&prev.nodes),
		workloads:  t.workloads.publish(&prev.workloads),
		identities: t.identities.publish(&prev.identities),
		tokens:     t.tokens.publish(&prev.tokens),
		configs:    t.configs.publish(&prev.configs),
		servers:    t.servers.publish(&prev.servers),
		writers:    t.writers.publish(&prev.writers),
		answers:    t.answers.publish(&prev.answers),
		keys:       t.keys.publish(&prev.keys),
		policies:   t.policies.publish(&prev.policies),
		audit:      t.audit.publish(&prev.audit),
	}
}

// protoRow is what all rows that are messages have in common.
type protoRow interface {
	proto.Message
	GetCreateRevision() uint64
	GetModifyRevision() uint64
}

// rowKind describes a table whose rows are messages.
func rowKind[R protoRow](
	id Table, fresh func() R, key func(R) string, stamp func(row R, create, modify uint64),
	index ...func(R, func(string)),
) *kind[R] {
	return &kind[R]{
		id:     id,
		tag:    byte(id),
		fresh:  fresh,
		key:    key,
		encode: encodeMessage[R],
		stamp:  stamp,
		revisions: func(row R) (create, modify uint64) {
			return row.GetCreateRevision(), row.GetModifyRevision()
		},
		index: index,
	}
}

// Positions of the secondary indexes in their tables.
const (
	sessionsByIdentity = 0
	agentsByWorkload   = 1

	interceptsBySession  = 0
	interceptsByWorkload = 1

	workloadsByNode = 0

	writersByUse = 0
)

var sessionKind = rowKind(
	TableSessions,
	func() *commandv1.SessionRow { return new(commandv1.SessionRow) },
	(*commandv1.SessionRow).GetId,
	func(row *commandv1.SessionRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
	func(row *commandv1.SessionRow, emit func(string)) { // sessionsByIdentity
		emit(part(row.GetIdentity()))
	},
	func(row *commandv1.SessionRow, emit func(string)) { // agentsByWorkload
		if a := row.GetAgent(); a != nil {
			emit(part(a.GetNamespace()) + part(a.GetName()))
		}
	},
)

var interceptKind = rowKind(
	TableIntercepts,
	func() *commandv1.InterceptRow { return new(commandv1.InterceptRow) },
	(*commandv1.InterceptRow).GetId,
	func(row *commandv1.InterceptRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
	func(row *commandv1.InterceptRow, emit func(string)) { // interceptsBySession
		emit(part(row.GetSessionId()))
	},
	func(row *commandv1.InterceptRow, emit func(string)) { // interceptsByWorkload
		emit(part(row.GetSpec().GetNamespace()) + part(row.GetSpec().GetAgent()))
	},
)

var nodeKind = rowKind(
	TableNodes,
	func() *commandv1.NodeRow { return new(commandv1.NodeRow) },
	(*commandv1.NodeRow).GetName,
	func(row *commandv1.NodeRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

// workloadKey is unambiguous because names with a slash are refused.
func workloadKey(namespace, name string) string { return namespace + "/" + name }

var workloadKind = rowKind(
	TableWorkloads,
	func() *commandv1.WorkloadRow { return new(commandv1.WorkloadRow) },
	func(row *commandv1.WorkloadRow) string {
		return workloadKey(row.GetNamespace(), row.GetName())
	},
	func(row *commandv1.WorkloadRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
	func(row *commandv1.WorkloadRow, emit func(string)) { // workloadsByNode
		// The pods are sorted by node.
		last := ""
		for _, pod := range row.GetPods() {
			if node := pod.GetNode(); node != last {
				emit(part(node))
				last = node
			}
		}
	},
)

var identityKind = rowKind(
	TableIdentities,
	func() *commandv1.IdentityRow { return new(commandv1.IdentityRow) },
	(*commandv1.IdentityRow).GetUri,
	func(row *commandv1.IdentityRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

var tokenKind = rowKind(
	TableTokens,
	func() *commandv1.TokenRow { return new(commandv1.TokenRow) },
	(*commandv1.TokenRow).GetId,
	func(row *commandv1.TokenRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

var configKind = rowKind(
	TableConfig,
	func() *commandv1.ConfigRow { return new(commandv1.ConfigRow) },
	(*commandv1.ConfigRow).GetKey,
	func(row *commandv1.ConfigRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

var serverKind = rowKind(
	TableServers,
	func() *commandv1.ServerRow { return new(commandv1.ServerRow) },
	(*commandv1.ServerRow).GetId,
	func(row *commandv1.ServerRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

var keyKind = rowKind(
	TableKeys,
	func() *commandv1.KeyRow { return new(commandv1.KeyRow) },
	(*commandv1.KeyRow).GetId,
	func(row *commandv1.KeyRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)

var policyKind = rowKind(
	TablePolicies,
	func() *commandv1.PolicyRow { return new(commandv1.PolicyRow) },
	(*commandv1.PolicyRow).GetName,
	func(row *commandv1.PolicyRow, create, modify uint64) {
		row.CreateRevision, row.ModifyRevision = create, modify
	},
)
