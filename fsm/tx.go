package fsm

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	commandv1 "trivet/proto/trivet/command/v1"
)

// maxCommandBytes bounds a command, and with it every row that is made of one.
// The proposer refuses large commands earlier and with a better message; this
// bound keeps a snapshot readable whatever the proposer lets through.
const maxCommandBytes = 1 << 20

// tx is the application of one command. Appliers check first and write last:
// a refused command leaves no trace but its revision, its time and its answer.
type tx struct {
	work   *Root
	enc    *encoder
	cmd    *commandv1.Command
	events []Event
	// start is the number of events when the command began: the entry's earlier
	// commands made those.
	start  int
	record recording
}

func (t *tx) now() int64 { return t.work.meta.GetTime() }

// maxTick is how far one command moves the steady time. A leader whose clock
// jumps by days leads for less than a second more: what is measured by the steady
// time hardly notices.
const maxTick = 10 * 60 * 1e9

// tick moves the steady time on as time has moved since was, but not by a jump.
func (t *tx) tick(was int64) {
	meta := t.work.meta
	if meta.SteadyTime == 0 {
		meta.SteadyTime = meta.GetTime()
		return
	}
	meta.SteadyTime += min(meta.GetTime()-was, maxTick)
}

// steady is the time by which writers are idle.
func (t *tx) steady() int64 {
	if t.since2() {
		return t.work.meta.GetSteadyTime()
	}
	return t.now()
}

func (t *tx) revision() uint64 { return t.work.revision }

// execute runs the applier behind everything that is common to all commands.
func (t *tx) execute(op *applier) *commandv1.Result {
	res := t.guarded(op)
	if !res.GetRepeated() {
		res.Revision = t.revision()
		if op != nil && t.since2() {
			t.audit(op, res)
		}
	}
	return res
}

func (t *tx) guarded(op *applier) *commandv1.Result {
	if op == nil {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonInvalid, "command has no operation")
	}
	if v := t.cmd.GetVersion(); v < op.minVersion {
		return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonInvalid,
			"command version %d is older than the operation, which came with version %d",
			v, op.minVersion)
	}
	if size := proto.Size(t.cmd); size > maxCommandBytes {
		return refuse(commandv1.Code_CODE_RESOURCE_EXHAUSTED, ReasonTooLarge,
			"command of %d bytes is larger than %d", size, maxCommandBytes)
	}
	if row, ok := t.work.identities.get(t.cmd.GetIdentity()); ok && row.GetDenied() {
		return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonIdentityDenied,
			"identity %s is denied: %s", row.GetUri(), row.GetReason())
	}
	slot, answer := t.admit(t.cmd.GetRequestId())
	if answer != nil {
		return answer
	}
	if want := t.cmd.GetExpectedTerm(); want != 0 && want != t.work.position.Term {
		if slot != nil {
			t.keep(slot)
		}
		return refuse(commandv1.Code_CODE_ABORTED, ReasonStaleTerm,
			"decided in term %d, applied in term %d", want, t.work.position.Term)
	}
	res := op.apply(t)
	res.Revision = t.revision()
	if t.since2() {
		res.Message, res.Hint = cut(res.GetMessage(), maxResultText), cut(res.GetHint(), maxResultText)
	}
	if slot != nil {
		t.settle(slot, res)
	}
	return res
}

// put stores a row that nobody else has seen yet, stamps its revisions and
// records the event.
func put[R any](t *tx, tb *table[R], row R) {
	key := tb.kind.key(row)
	create := t.revision()
	if old, ok := tb.get(key); ok {
		create, _ = tb.kind.revisions(old)
	}
	tb.kind.stamp(row, create, t.revision())
	s, old := tb.set(t.enc, &t.work.sum, key, row)
	if !tb.kind.silent {
		t.events = append(t.events, Event{
			Revision: t.revision(), Table: tb.kind.id, Key: key, Op: Put,
			Old: message(old), New: message(s),
		})
	}
}

// drop removes a row and records the event. It returns the row's size, 0 if
// there was none.
func drop[R any](t *tx, tb *table[R], key string) int {
	old := tb.remove(&t.work.sum, key)
	if old == nil {
		return 0
	}
	if !tb.kind.silent {
		t.events = append(t.events, Event{
			Revision: t.revision(), Table: tb.kind.id, Key: key, Op: Delete, Old: message(old),
		})
	}
	return old.size
}

// edit returns a copy of a published row whose fields may be set. The values
// of the fields are shared with the original: replace them, never change them
// in place.
func edit[M proto.Message](row M) M {
	from := row.ProtoReflect()
	to := from.New()
	from.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to.Set(fd, v)
		return true
	})
	to.SetUnknown(from.GetUnknown())
	return to.Interface().(M)
}

// refuse makes the result of a command that changes nothing.
func refuse(
	code commandv1.Code, reason, format string, args ...any,
) *commandv1.Result {
	return &commandv1.Result{Code: code, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// invalid is refuse for the commonest case.
func invalid(format string, args ...any) *commandv1.Result {
	return refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonInvalid, format, args...)
}

func hinted(res *commandv1.Result, format string, args ...any) *commandv1.Result {
	res.Hint = fmt.Sprintf(format, args...)
	return res
}

// Results of success, one per kind of row.

func done() *commandv1.Result { return &commandv1.Result{} }

func withSession(row *commandv1.SessionRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Session{Session: row}}
}

func withIntercept(row *commandv1.InterceptRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Intercept{Intercept: row}}
}

func withNode(row *commandv1.NodeRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Node{Node: row}}
}

func withWorkload(row *commandv1.WorkloadRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Workload{Workload: row}}
}

func withConfig(row *commandv1.ConfigRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Config{Config: row}}
}

func withToken(row *commandv1.TokenRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Token{Token: row}}
}

func withKey(row *commandv1.KeyRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Key{Key: row}}
}

func withServer(row *commandv1.ServerRow) *commandv1.Result {
	return &commandv1.Result{Row: &commandv1.Result_Server{Server: row}}
}
