package fsm

import (
	"iter"

	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// DefaultLimits returns what the fields of Limits mean that are 0.
func DefaultLimits() *commandv1.Limits {
	return &commandv1.Limits{
		SessionsPerIdentity:    64,
		InterceptsPerIdentity:  128,
		InterceptsPerNamespace: 1000,
		ConfigKeys:             1_000_000,
		ConfigBytes:            256 << 20,
		Tokens:                 10_000,
		Policies:               1000,
		WorkloadsPerNode:       2000,
		Nodes:                  10_000,
		AgentsPerNode:          2000,
	}
}

// EffectiveLimits returns the limits of the cluster, with the defaults filled
// in.
func (r *Root) EffectiveLimits() *commandv1.Limits {
	l := DefaultLimits()
	proto.Merge(l, r.meta.GetLimits()) // fields that are 0 are left alone
	return l
}

// Sizes of what comes from outside, but for environments.
const (
	maxText        = 512
	maxClientBytes = 16 << 10
	maxAgentBytes  = 256 << 10
	maxSpecBytes   = 64 << 10
	maxNodeBytes   = 16 << 10
	maxSealedBytes = 384 << 10
)

func (t *tx) setLimits(op *commandv1.SetLimits) *commandv1.Result {
	if role, _ := roleOf(t.cmd.GetIdentity()); t.cmd.GetIdentity() != "" && role != roleOperator {
		return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonOperatorOnly, "only operators may change limits")
	}
	t.work.meta.Limits = op.GetLimits()
	t.events = append(t.events, Event{
		Revision: t.revision(), Table: TableMeta, Key: metaKey, Op: Put, New: edit(t.work.meta),
	})
	return done()
}

// since2 tells whether the rules that came with command version 2 hold for
// this command. Servers that know only version 1 apply the commands that are
// made while they are there, and must come to the same state.
func (t *tx) since2() bool { return t.cmd.GetVersion() >= 2 }

// within is the bound of an identity's sessions. Commands of the leader itself
// have none.
func (t *tx) within(have iter.Seq[*commandv1.SessionRow], limit uint32, reason, name, format string, args ...any) *commandv1.Result {
	if t.cmd.GetIdentity() == "" {
		return nil
	}
	return within(have, limit, reason, name, format, args...)
}

// within refuses what would be one more than a limit allows. It stops counting
// at the limit.
func within[R any](have iter.Seq[R], limit uint32, reason, name, format string, args ...any) *commandv1.Result {
	n := uint32(0)
	for range have {
		if n++; n >= limit {
			return overLimit(reason, name, format, args...)
		}
	}
	return nil
}

func overLimit(reason, name, format string, args ...any) *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, reason, format, args...),
		"remove some, or ask an operator to raise it: trivet operator limits set %s=N", name)
}

// tooLarge refuses a message that came from outside and is larger than any
// sensible one.
func tooLarge(what string, m proto.Message, limit int) *commandv1.Result {
	if size := proto.Size(m); size > limit {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "%s of %d bytes is larger than %d", what, size, limit)
	}
	return nil
}

func sealedTooLarge(b []byte) *commandv1.Result {
	if len(b) > maxSealedBytes {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "a sealed environment of %d bytes is larger than %d", len(b), maxSealedBytes)
	}
	return nil
}

// tooLong refuses texts that are longer than any sensible one. It is given
// pairs of name and text.
func tooLong(pairs ...string) *commandv1.Result {
	for i := 0; i+1 < len(pairs); i += 2 {
		if len(pairs[i+1]) > maxText {
			return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge, "%s of %d bytes is longer than %d", pairs[i], len(pairs[i+1]), maxText)
		}
	}
	return nil
}

// first returns the first refusal.
func first(results ...*commandv1.Result) *commandv1.Result {
	for _, res := range results {
		if res != nil {
			return res
		}
	}
	return nil
}
