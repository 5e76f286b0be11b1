package actors

import (
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

// sessionMsg is what an awake session actor receives: how the expiry that it
// asked for has ended, as far as the janitor can tell. An actor that hears
// nothing tells itself.
type sessionMsg struct{ outcome outcome }

// sessionActor is the awake actor of one session. It lives from the moment at
// which the deadline was found passed until the row is gone or the session has
// given a sign of life. What it remembers is in the table, where the passive
// session left it and will find it.
type sessionActor struct {
	l        *Leader
	id       string
	patience *rt.Timer
}

// wakeSession starts the actor of a session that the table has marked active.
func (l *Leader) wakeSession(s dueSession) {
	group, kind := l.agents, "agent"
	if s.kind == commandv1.SessionKind_SESSION_KIND_CLIENT {
		group, kind = l.clients, "client"
	}
	_, err := rt.Spawn(group, rt.Spec[sessionMsg]{
		Name:     s.id,
		Kind:     kind,
		Capacity: 1,
		New: func() rt.Behavior[sessionMsg] {
			return &sessionActor{l: l, id: s.id}
		},
	})
	if err != nil { // the tree is stopping
		l.sessions.passivate(s.id, 0)
	}
}

// Start looks at the session. What an earlier incarnation asked for is taken
// as unanswered: the state refuses to expire a row twice.
func (a *sessionActor) Start(ctx *rt.Ctx[sessionMsg]) error {
	a.l.counters.awake.Add(1)
	a.l.sessions.forgetAsked(a.id)
	a.look(ctx, sessionEvent{Kind: sessionLooked})
	return nil
}

// Handle takes in the answer and looks again.
func (a *sessionActor) Handle(ctx *rt.Ctx[sessionMsg], m sessionMsg) error {
	a.patience.Stop()
	a.look(ctx, sessionEvent{Kind: sessionAnswered, Outcome: m.outcome})
	return nil
}

// Stop gives the session back to the table.
func (a *sessionActor) Stop(_ *rt.Ctx[sessionMsg], why rt.Reason) {
	a.l.counters.awake.Add(-1)
	switch why {
	case rt.ReasonRestarting:
	case rt.ReasonFailed:
		a.l.sessions.passivate(a.id, a.l.cfg.Limits.QuarantineRetry)
	case rt.ReasonStopped:
		a.l.sessions.passivate(a.id, 0)
	}
}

// look decides and executes. A session that has to wait does so in the table.
func (a *sessionActor) look(ctx *rt.Ctx[sessionMsg], ev sessionEvent) {
	l := a.l
	d := l.sessions.step(a.id, l.cfg.Replicator.Root(), ev)
	if len(d.Commands) == 0 {
		ctx.StopSelf()
		return
	}
	for _, cmd := range d.Commands {
		for _, item := range cmd.GetExpireSessions().GetItems() {
			if !l.askJanitor(expiry{item: item, from: ctx.Self()}) {
				// No room, or no janitor: as good as an answer that never
				// came, after a moment.
				a.patience = ctx.After(l.cfg.Limits.RetryMin, sessionMsg{outcomeUnknown})
				return
			}
		}
	}
	a.patience = ctx.After(3*l.cfg.Limits.ProposeTimeout, sessionMsg{outcomeUnknown})
}
