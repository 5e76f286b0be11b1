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
// in. The caller may change the copy it gets.
func (r *Root) EffectiveLimits() *commandv1.Limits { return proto.CloneOf(r.limits) }

func limitsOf(meta *commandv1.MetaRow) *commandv1.Limits {
	l := DefaultLimits()
	proto.Merge(l, meta.GetLimits()) // fields that are 0 are left alone
	return l
}

func (t *tx) setLimits(op *commandv1.SetLimits) *commandv1.Result {
	if res := t.operatorOnly("limits"); res != nil {
		return res
	}
	if want := op.GetIfLimits(); want != nil && !proto.Equal(want, t.work.limits) {
		return hinted(refuse(commandv1.Code_CODE_ABORTED, ReasonConflict, "the limits were changed meanwhile"),
			"read the limits again and repeat the change on what holds now")
	}
	t.work.meta.Limits = op.GetLimits()
	t.work.limits = limitsOf(t.work.meta)
	t.events = append(t.events, Event{
		Revision: t.revision(), Table: TableMeta, Key: metaKey, Op: Put, New: edit(t.work.meta),
	})
	return done()
}

// since2 tells whether the rules that came with command version 2 hold for
// this command. Servers that know only version 1 apply the commands that are
// made while they are there, and must come to the same state.
func (t *tx) since2() bool { return t.cmd.GetVersion() >= 2 }

// sessionLimit refuses a session of a kind too many of the caller's. Commands
// of the leader itself have no such bound.
func (t *tx) sessionLimit(kind commandv1.SessionKind, limit uint32, reason, name string) *commandv1.Result {
	caller := t.cmd.GetIdentity()
	if caller == "" {
		return nil
	}
	have := func(yield func(*commandv1.SessionRow) bool) {
		for row := range t.work.SessionsOf(caller) {
			if row.GetKind() == kind && !yield(row) {
				return
			}
		}
	}
	return within(t.work.sessions.rows.Len(), have, limit, reason, name, "%s has %d sessions, which is all it may", caller, limit)
}

// within refuses what would be one more than a limit allows. It stops counting
// at the limit, and does not begin when the whole table of so many rows is
// smaller: an operator may have set a limit that is none.
func within[R any](rows int, have iter.Seq[R], limit uint32, reason, name, format string, args ...any) *commandv1.Result {
	if uint64(rows) < uint64(limit) {
		return nil
	}
	n := uint32(0)
	for range have {
		if n++; n >= limit {
			return overLimit(reason, name, format, args...)
		}
	}
	return nil
}

// overLimit names the limit, as it is called in Limits, and who can raise it.
func overLimit(reason, name, format string, args ...any) *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, reason, format, args...),
		"remove some, or ask an operator to raise it: trivet operator limits set %s=N", name)
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
