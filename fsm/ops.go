package fsm

import (
	"fmt"
	"reflect"

	"google.golang.org/protobuf/encoding/protowire"

	commandv1 "trivet/proto/trivet/command/v1"
)

// firstOp is the lowest field number of an operation in a command.
const firstOp = 16

// applier applies one operation.
type applier struct {
	// minVersion is the command version the operation came with.
	minVersion uint32
	apply      func(*tx) *commandv1.Result
}

// on binds an operation's getter to the method that applies it.
func on[O any](
	minVersion uint32, op func(*commandv1.Command) O, apply func(*tx, O) *commandv1.Result,
) *applier {
	return &applier{
		minVersion: minVersion,
		apply:      func(t *tx) *commandv1.Result { return apply(t, op(t.cmd)) },
	}
}

// appliers holds every operation this program knows, by the type of its
// wrapper.
var appliers = map[reflect.Type]*applier{
	reflect.TypeFor[*commandv1.Command_InitCluster](): on(1, (*commandv1.Command).GetInitCluster, (*tx).initCluster),
	reflect.TypeFor[*commandv1.Command_PutServer]():   on(1, (*commandv1.Command).GetPutServer, (*tx).putServer),

	reflect.TypeFor[*commandv1.Command_PutConfig]():    on(1, (*commandv1.Command).GetPutConfig, (*tx).putConfig),
	reflect.TypeFor[*commandv1.Command_DeleteConfig](): on(1, (*commandv1.Command).GetDeleteConfig, (*tx).deleteConfig),

	reflect.TypeFor[*commandv1.Command_PutIdentity]():  on(1, (*commandv1.Command).GetPutIdentity, (*tx).putIdentity),
	reflect.TypeFor[*commandv1.Command_CreateToken]():  on(1, (*commandv1.Command).GetCreateToken, (*tx).createToken),
	reflect.TypeFor[*commandv1.Command_ConsumeToken](): on(1, (*commandv1.Command).GetConsumeToken, (*tx).consumeToken),
	reflect.TypeFor[*commandv1.Command_RevokeToken]():  on(1, (*commandv1.Command).GetRevokeToken, (*tx).revokeToken),

	reflect.TypeFor[*commandv1.Command_ArriveClient]():   on(1, (*commandv1.Command).GetArriveClient, (*tx).arriveClient),
	reflect.TypeFor[*commandv1.Command_ArriveAgent]():    on(1, (*commandv1.Command).GetArriveAgent, (*tx).arriveAgent),
	reflect.TypeFor[*commandv1.Command_Depart]():         on(1, (*commandv1.Command).GetDepart, (*tx).depart),
	reflect.TypeFor[*commandv1.Command_ExpireSessions](): on(1, (*commandv1.Command).GetExpireSessions, (*tx).expireSessions),
	reflect.TypeFor[*commandv1.Command_SetGeneration]():  on(1, (*commandv1.Command).GetSetGeneration, (*tx).setGeneration),

	reflect.TypeFor[*commandv1.Command_CreateIntercept](): on(1, (*commandv1.Command).GetCreateIntercept, (*tx).createIntercept),
	reflect.TypeFor[*commandv1.Command_RemoveIntercept](): on(1, (*commandv1.Command).GetRemoveIntercept, (*tx).removeIntercept),
	reflect.TypeFor[*commandv1.Command_ReviewIntercept](): on(1, (*commandv1.Command).GetReviewIntercept, (*tx).reviewIntercept),
	reflect.TypeFor[*commandv1.Command_SetIntercept]():    on(1, (*commandv1.Command).GetSetIntercept, (*tx).setIntercept),

	reflect.TypeFor[*commandv1.Command_PutNode]():         on(1, (*commandv1.Command).GetPutNode, (*tx).putNode),
	reflect.TypeFor[*commandv1.Command_RemoveNode]():      on(1, (*commandv1.Command).GetRemoveNode, (*tx).removeNode),
	reflect.TypeFor[*commandv1.Command_ReportWorkloads](): on(1, (*commandv1.Command).GetReportWorkloads, (*tx).reportWorkloads),
	reflect.TypeFor[*commandv1.Command_RemoveServer]():    on(2, (*commandv1.Command).GetRemoveServer, (*tx).removeServer),
	reflect.TypeFor[*commandv1.Command_PutKey]():          on(2, (*commandv1.Command).GetPutKey, (*tx).putKey),
	reflect.TypeFor[*commandv1.Command_DeleteKey]():       on(2, (*commandv1.Command).GetDeleteKey, (*tx).deleteKey),
	reflect.TypeFor[*commandv1.Command_PutPolicy]():       on(2, (*commandv1.Command).GetPutPolicy, (*tx).putPolicy),
	reflect.TypeFor[*commandv1.Command_DeletePolicy]():    on(2, (*commandv1.Command).GetDeletePolicy, (*tx).deletePolicy),
	reflect.TypeFor[*commandv1.Command_SetLimits]():       on(2, (*commandv1.Command).GetSetLimits, (*tx).setLimits),
	reflect.TypeFor[*commandv1.Command_RecordAudit]():     on(2, (*commandv1.Command).GetRecordAudit, (*tx).recordAudit),

	reflect.TypeFor[*commandv1.Command_EnsureAgent](): on(1, (*commandv1.Command).GetEnsureAgent, (*tx).ensureAgent),
}

// MinVersion returns the command version that c's operation came with. The
// leader proposes it only once every server's ServerRow.command_version is at
// least that. ok is false when this program does not know the operation.
func MinVersion(c *commandv1.Command) (version uint32, ok bool) {
	op, ok := appliers[reflect.TypeOf(c.GetOp())]
	if !ok {
		return 0, false
	}
	return op.minVersion, true
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

// applierOf returns the applier of a command; nil if it has no operation.
func applierOf(pos Position, i int, c *commandv1.Command) (*applier, error) {
	unknown := &UnknownCommandError{
		Position: pos, Command: i, Version: c.GetVersion(), Known: CommandVersion,
	}
	if c.GetVersion() > CommandVersion {
		return nil, unknown
	}
	if unknown.Field = unknownOp(c); unknown.Field != 0 {
		return nil, unknown
	}
	if c.GetOp() == nil {
		return nil, nil
	}
	op, ok := appliers[reflect.TypeOf(c.GetOp())]
	if !ok {
		return nil, unknown
	}
	return op, nil
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
