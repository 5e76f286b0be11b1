package fsm

import (
	"fmt"
	"reflect"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	commandv1 "trivet/proto/trivet/command/v1"
)

// firstOp is the lowest field number of an operation in a command.
const firstOp = 16

// applier applies one operation.
type applier struct {
	// minVersion is the command version the operation came with.
	minVersion uint32
	// class is that of the audit records it makes, if any. Which of its commands
	// make one is said in audited.go.
	class commandv1.AuditClass
	apply func(*tx) *commandv1.Result
}

// on binds an operation's getter to the method that applies it.
func on[O any](
	minVersion uint32, class commandv1.AuditClass, op func(*commandv1.Command) O, apply func(*tx, O) *commandv1.Result,
) *applier {
	return &applier{
		minVersion: minVersion,
		class:      class,
		apply:      func(t *tx) *commandv1.Result { return apply(t, op(t.cmd)) },
	}
}

// Short names of the audit classes, for the table below. The class of
// RecordAudit is in the command.
const (
	unrecorded = commandv1.AuditClass_AUDIT_CLASS_UNSPECIFIED
	security   = commandv1.AuditClass_AUDIT_CLASS_SECURITY
	action     = commandv1.AuditClass_AUDIT_CLASS_ACTION
	lifecycle  = commandv1.AuditClass_AUDIT_CLASS_LIFECYCLE
)

// appliers holds every operation this program knows, by the type of its
// wrapper.
var appliers = map[reflect.Type]*applier{
	reflect.TypeFor[*commandv1.Command_InitCluster]():  on(1, security, (*commandv1.Command).GetInitCluster, (*tx).initCluster),
	reflect.TypeFor[*commandv1.Command_PutServer]():    on(1, lifecycle, (*commandv1.Command).GetPutServer, (*tx).putServer),
	reflect.TypeFor[*commandv1.Command_RemoveServer](): on(2, security, (*commandv1.Command).GetRemoveServer, (*tx).removeServer),
	reflect.TypeFor[*commandv1.Command_SetLimits]():    on(2, security, (*commandv1.Command).GetSetLimits, (*tx).setLimits),

	reflect.TypeFor[*commandv1.Command_PutConfig]():    on(1, action, (*commandv1.Command).GetPutConfig, (*tx).putConfig),
	reflect.TypeFor[*commandv1.Command_DeleteConfig](): on(1, action, (*commandv1.Command).GetDeleteConfig, (*tx).deleteConfig),

	reflect.TypeFor[*commandv1.Command_PutIdentity]():  on(1, security, (*commandv1.Command).GetPutIdentity, (*tx).putIdentity),
	reflect.TypeFor[*commandv1.Command_CreateToken]():  on(1, security, (*commandv1.Command).GetCreateToken, (*tx).createToken),
	reflect.TypeFor[*commandv1.Command_ConsumeToken](): on(1, security, (*commandv1.Command).GetConsumeToken, (*tx).consumeToken),
	reflect.TypeFor[*commandv1.Command_RevokeToken]():  on(1, security, (*commandv1.Command).GetRevokeToken, (*tx).revokeToken),
	reflect.TypeFor[*commandv1.Command_PutKey]():       on(2, security, (*commandv1.Command).GetPutKey, (*tx).putKey),
	reflect.TypeFor[*commandv1.Command_DeleteKey]():    on(2, security, (*commandv1.Command).GetDeleteKey, (*tx).deleteKey),

	reflect.TypeFor[*commandv1.Command_ArriveClient]():   on(1, lifecycle, (*commandv1.Command).GetArriveClient, (*tx).arriveClient),
	reflect.TypeFor[*commandv1.Command_ArriveAgent]():    on(1, lifecycle, (*commandv1.Command).GetArriveAgent, (*tx).arriveAgent),
	reflect.TypeFor[*commandv1.Command_Depart]():         on(1, lifecycle, (*commandv1.Command).GetDepart, (*tx).depart),
	reflect.TypeFor[*commandv1.Command_ExpireSessions](): on(1, lifecycle, (*commandv1.Command).GetExpireSessions, (*tx).expireSessions),
	reflect.TypeFor[*commandv1.Command_SetGeneration]():  on(1, unrecorded, (*commandv1.Command).GetSetGeneration, (*tx).setGeneration),

	reflect.TypeFor[*commandv1.Command_CreateIntercept](): on(1, action, (*commandv1.Command).GetCreateIntercept, (*tx).createIntercept),
	reflect.TypeFor[*commandv1.Command_RemoveIntercept](): on(1, action, (*commandv1.Command).GetRemoveIntercept, (*tx).removeIntercept),
	reflect.TypeFor[*commandv1.Command_ReviewIntercept](): on(1, unrecorded, (*commandv1.Command).GetReviewIntercept, (*tx).reviewIntercept),
	reflect.TypeFor[*commandv1.Command_SetIntercept]():    on(1, lifecycle, (*commandv1.Command).GetSetIntercept, (*tx).setIntercept),
	reflect.TypeFor[*commandv1.Command_PutPolicy]():       on(2, security, (*commandv1.Command).GetPutPolicy, (*tx).putPolicy),
	reflect.TypeFor[*commandv1.Command_DeletePolicy]():    on(2, security, (*commandv1.Command).GetDeletePolicy, (*tx).deletePolicy),

	reflect.TypeFor[*commandv1.Command_PutNode]():         on(1, lifecycle, (*commandv1.Command).GetPutNode, (*tx).putNode),
	reflect.TypeFor[*commandv1.Command_RemoveNode]():      on(1, action, (*commandv1.Command).GetRemoveNode, (*tx).removeNode),
	reflect.TypeFor[*commandv1.Command_ReportWorkloads](): on(1, unrecorded, (*commandv1.Command).GetReportWorkloads, (*tx).reportWorkloads),
	reflect.TypeFor[*commandv1.Command_EnsureAgent]():     on(1, action, (*commandv1.Command).GetEnsureAgent, (*tx).ensureAgent),
	reflect.TypeFor[*commandv1.Command_UninstallAgents](): on(2, action, (*commandv1.Command).GetUninstallAgents, (*tx).uninstallAgents),

	reflect.TypeFor[*commandv1.Command_RecordAudit](): on(2, unrecorded, (*commandv1.Command).GetRecordAudit, (*tx).recordAudit),
}

// sealedSince is the command version in which environments can be sealed. A
// program of version 1 loses sealed bytes, so they mean nothing in its commands.
const sealedSince = 2

// MinVersion returns the lowest command version with which c can be applied:
// that in which its operation came, or what it says if that is later. The
// leader proposes it only once every server's ServerRow.command_version is at
// least that. ok is false when this program does not know the operation.
func MinVersion(c *commandv1.Command) (version uint32, ok bool) {
	op, ok := appliers[reflect.TypeOf(c.GetOp())]
	if !ok {
		return 0, false
	}
	if sealed(c) {
		return max(op.minVersion, sealedSince), true
	}
	return op.minVersion, true
}

// sealed tells whether a command holds a sealed environment.
func sealed(c *commandv1.Command) bool {
	switch op := c.GetOp().(type) {
	case *commandv1.Command_ArriveAgent:
		return len(op.ArriveAgent.GetSealedEnvironments()) > 0
	case *commandv1.Command_ReviewIntercept:
		return len(op.ReviewIntercept.GetSealedEnvironment()) > 0
	case *commandv1.Command_ReportWorkloads:
		for _, w := range op.ReportWorkloads.GetWorkloads() {
			for _, pod := range w.GetPods() {
				if slices.ContainsFunc(pod.GetContainers(), func(c *commandv1.Container) bool { return len(c.GetSealedEnvironment()) > 0 }) {
					return true
				}
			}
		}
	}
	return false
}

// UnknownCommandError reports a command that a newer program made. Skipping it
// would let this replica drift away from its peers, so it stops.
type UnknownCommandError struct {
	// Position is that of the log entry, Command counts within it from 0.
	Position Position
	Command  int
	// Version is the command's; Known is the newest this program can apply.
	Version, Known uint32
	// Field is the field number of the unknown operation, 0 if the version
	// alone is too new.
	Field uint32
}

// Error says what was met and what to do.
func (e *UnknownCommandError) Error() string {
	what := fmt.Sprintf("has version %d, newer than %d", e.Version, e.Known)
	if e.Field != 0 {
		what = fmt.Sprintf("asks for operation %d, which version %d does not have", e.Field, e.Known)
	}
	return fmt.Sprintf("command %d of log entry %d (term %d) %s: run a newer program on this server",
		e.Command, e.Position.Index, e.Position.Term, what)
}

// applierOf returns the applier of a command; nil if it has no operation. known
// is the newest command version that may be applied.
func applierOf(pos Position, i int, c *commandv1.Command, known uint32) (*applier, error) {
	unknown := &UnknownCommandError{
		Position: pos, Command: i, Version: c.GetVersion(), Known: known,
	}
	if c.GetVersion() > known {
		return nil, unknown
	}
	if unknown.Field = unknownOp(c); unknown.Field != 0 {
		return nil, unknown
	}
	if c.GetOp() == nil {
		return nil, nil
	}
	op, ok := appliers[reflect.TypeOf(c.GetOp())]
	if !ok || op.minVersion > known {
		unknown.Field = opNumber(c)
		return nil, unknown
	}
	return op, nil
}

// opNumber returns the field number of a command's operation.
func opNumber(c *commandv1.Command) uint32 {
	m := c.ProtoReflect()
	fd := m.WhichOneof(m.Descriptor().Oneofs().ByName("op"))
	if fd == nil {
		return 0
	}
	return uint32(fd.Number())
}

// unknownOp returns the number of the first unknown field that stands where
// operations do, 0 if there is none.
func unknownOp(c *commandv1.Command) uint32 {
	rest := c.ProtoReflect().GetUnknown()
	for len(rest) > 0 {
		number, _, n := protowire.ConsumeField(rest)
		if n < 0 {
			return 0
		}
		if number >= firstOp {
			return uint32(number)
		}
		rest = rest[n:]
	}
	return 0
}
