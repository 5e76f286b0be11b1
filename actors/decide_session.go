package actors

import commandv1 "trivet/proto/trivet/command/v1"

// sessionMemory is all that the leader remembers about a session beside its
// row. It is rebuilt from nothing by the next leader, at the price of one more
// period for everybody.
type sessionMemory struct {
	// Mark is the last sign of life: a Remain, an arrival, a change of the row,
	// or the start of this leader.
	Mark instant
	// EndedAt is when the peer itself ended its last stream; valid if Ended.
	EndedAt instant
	// Ended holds from then until a stream is open again or the row changes.
	Ended bool
	// Inherited marks a session that was there when the leader started: it is
	// owed a full period from then, whatever happens.
	Inherited bool
	// Asked is the revision of the row whose expiry was asked for and not
	// answered yet; zero: none.
	Asked uint64
	// Failures counts expiries in a row that did not take effect, and RetryAt
	// is when the next may be asked for.
	Failures int
	RetryAt  instant
}

// sessionEventKind says what happened to a session.
type sessionEventKind int

const (
	// sessionLooked: time has passed; nothing else is known to have happened.
	sessionLooked sessionEventKind = iota
	// sessionTouched: the peer sent Remain; At is its last activity.
	sessionTouched
	// sessionChanged: the row differs from the one seen before.
	sessionChanged
	// sessionAttached: the session has a stream at some server.
	sessionAttached
	// sessionEnded: the peer ended its stream and has none left anywhere.
	sessionEnded
	// sessionAnswered: the expiry asked for ended with Outcome.
	sessionAnswered
)

// sessionEvent is a value, not an interface: a Remain must not allocate.
type sessionEvent struct {
	Kind    sessionEventKind
	At      instant
	Outcome outcome
}

// observe takes in an event; it is the part that agents and clients share.
func (m sessionMemory) observe(row *commandv1.SessionRow, now instant, ev sessionEvent, lim *Limits) sessionMemory {
	switch ev.Kind {
	case sessionLooked:
	case sessionTouched:
		m.Mark = max(m.Mark, ev.At)
	case sessionChanged:
		// Only the peer itself makes its row change.
		m.Mark = max(m.Mark, now)
		m.Ended = false
	case sessionAttached:
		m.Ended = false
	case sessionEnded:
		m.Ended, m.EndedAt = true, now
	case sessionAnswered:
		asked := m.Asked
		m.Asked = 0
		m.Failures++
		if row != nil && row.ModifyRevision != asked && ev.Outcome != outcomeUnknown {
			m.Failures = 0
		}
		if m.Failures > 0 && row != nil {
			m.RetryAt = now.add(backoff(lim, row.Id, m.Failures))
		}
	}
	return m
}

// expire asks for the row's expiry when deadline lies strictly before now. The
// deadline itself still belongs to the session.
func (m sessionMemory) expire(row *commandv1.SessionRow, now, deadline instant) (sessionMemory, decision) {
	if m.Asked != 0 {
		return m, decision{} // the answer will bring us back
	}
	if now <= deadline {
		m.Failures = 0
		return m, decision{Wake: deadline.sub(now) + 1}
	}
	if now < m.RetryAt {
		return m, decision{Wake: m.RetryAt.sub(now)}
	}
	m.Asked = row.ModifyRevision
	item := &commandv1.ExpireSessions_Item{SessionId: row.Id, SeenModifyRevision: row.ModifyRevision}
	return m, decision{Commands: []*commandv1.Command{{
		Op: &commandv1.Command_ExpireSessions{
			ExpireSessions: &commandv1.ExpireSessions{Items: []*commandv1.ExpireSessions_Item{item}},
		},
	}}}
}

// decideSession is the decide function of the row's kind.
func decideSession(row *commandv1.SessionRow, m sessionMemory, now instant, ev sessionEvent, lim *Limits) (sessionMemory, decision) {
	if row != nil && row.Kind == commandv1.SessionKind_SESSION_KIND_CLIENT {
		return decideClient(row, m, now, ev, lim)
	}
	return decideAgent(row, m, now, ev, lim)
}

// sessionDeadline is the last instant at which the session is safe.
func sessionDeadline(row *commandv1.SessionRow, m sessionMemory, lim *Limits) instant {
	if row.Kind == commandv1.SessionKind_SESSION_KIND_CLIENT {
		return clientDeadline(m, lim)
	}
	return agentDeadline(row, m, lim)
}
