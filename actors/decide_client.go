package actors

import commandv1 "trivet/proto/trivet/command/v1"

// decideClient decides about a client's session. row is nil when it is gone.
func decideClient(row *commandv1.SessionRow, m sessionMemory, now instant, ev sessionEvent, lim *Limits) (sessionMemory, decision) {
	m = m.observe(row, now, ev, lim)
	if row == nil {
		return m, decision{Done: true}
	}
	return m.expire(row, now, clientDeadline(m, lim))
}

// clientDeadline is the last instant at which the client is safe. Streams play
// no part: a laptop may sleep for a night.
func clientDeadline(m sessionMemory, lim *Limits) instant {
	return m.Mark.add(lim.ClientPeriod)
}
