package actors

import (
	"context"

	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

// interceptCapacity bounds an intercept's mailbox. Hints say nothing but
// "look", so two would do; the rest absorbs answers.
const interceptCapacity = 8

// interceptMsg is what an intercept actor receives.
type interceptMsg interface{ isInterceptMsg() }

type (
	// interceptHinted: its row or its owner may have changed.
	interceptHinted struct{}
	// interceptWoke: the time it asked to be woken at has come.
	interceptWoke struct{}
	// interceptAnswered: the command on its way has ended.
	interceptAnswered struct{ outcome outcome }
)

func (interceptHinted) isInterceptMsg()   {}
func (interceptWoke) isInterceptMsg()     {}
func (interceptAnswered) isInterceptMsg() {}

// intercept is the actor of one row.
type intercept struct {
	l      *Leader
	id     string
	memory interceptMemory
	wake   *rt.Timer
}

// spawnIntercept starts the actor of a row.
func (l *Leader) spawnIntercept(row *commandv1.InterceptRow) (rt.Ref[interceptMsg], error) {
	id := row.Id
	var seen instant
	if row.CreateRevision > l.startRevision {
		seen = l.clock.now()
	}
	return rt.Spawn(l.intercepts, rt.Spec[interceptMsg]{
		Name:     id,
		Kind:     "intercept",
		Capacity: interceptCapacity,
		New: func() rt.Behavior[interceptMsg] {
			return &intercept{l: l, id: id, memory: interceptMemory{FirstSeen: seen}}
		},
	})
}

// Start looks at the row: the first incarnation has not seen it yet, and a
// later one has lost what the one before it had.
func (a *intercept) Start(ctx *rt.Ctx[interceptMsg]) error {
	a.l.counters.intercepts.Add(1)
	a.look(ctx, 0)
	return nil
}

// Handle looks again, whatever the message.
func (a *intercept) Handle(ctx *rt.Ctx[interceptMsg], m interceptMsg) error {
	switch m := m.(type) {
	case interceptAnswered:
		a.look(ctx, m.outcome)
	case interceptWoke, interceptHinted:
		a.look(ctx, 0)
	}
	return nil
}

// Stop tells the janitor about an actor that was given up.
func (a *intercept) Stop(_ *rt.Ctx[interceptMsg], why rt.Reason) {
	a.l.counters.intercepts.Add(-1)
	if why == rt.ReasonFailed {
		a.l.quarantine.add(a.id, a.l.clock.now().add(a.l.cfg.Limits.QuarantineRetry))
	}
}

// look decides and executes.
func (a *intercept) look(ctx *rt.Ctx[interceptMsg], answer outcome) {
	l := a.l
	row, _ := l.cfg.Replicator.Root().Intercept(a.id)
	ev := interceptEvent{
		Owner:  l.attachments.owner(row.GetSessionId()),
		Wall:   l.sys.Now(),
		Answer: answer,
	}
	var d decision
	a.memory, d = decideIntercept(row, a.memory, l.clock.now(), ev, &l.cfg.Limits)
	a.wake.Stop()
	for _, e := range d.Effects {
		l.counters.note(e)
		ctx.Logger().Info(e.String(), "revision", row.GetModifyRevision(),
			"disposition", row.GetDisposition().String(), "owner", row.GetOwnerState().String())
	}
	if len(d.Commands) > 0 {
		cmds := d.Commands
		ctx.Go("propose", func(ctx context.Context) interceptMsg {
			return interceptAnswered{l.propose(ctx, cmds)}
		})
	}
	if d.Wake > 0 {
		a.wake = ctx.After(d.Wake, interceptWoke{})
	}
	if d.Done {
		ctx.StopSelf()
	}
}
