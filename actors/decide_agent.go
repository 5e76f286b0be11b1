package actors

import (
	faults "trivet/internal/fault"
	commandv1 "trivet/proto/trivet/command/v1"
)

// decideAgent decides about an agent's session. row is nil when it is gone.
func decideAgent(row *commandv1.SessionRow, m sessionMemory, now instant, ev sessionEvent, lim *Limits) (sessionMemory, decision) {
	m = m.observe(row, now, ev, lim)
	if row == nil {
		return m, decision{Done: true}
	}
	return m.expire(row, now, agentDeadline(row, m, lim))
}

// agentDeadline is the last instant at which the agent is safe: one period
// after its last sign of life. An agent that ended its last stream itself gets
// the shorter period, unless that would cut into the full period that is owed
// to everybody after a failover.
func agentDeadline(row *commandv1.SessionRow, m sessionMemory, lim *Limits) instant {
	period := lim.AgentPeriod
	if row.Generation == commandv1.Generation_GENERATION_OLDER {
		period = lim.OlderAgentPeriod
	}
	if faults.Planted(faults.EarlyExpiry) {
		period /= 10
	}
	deadline := m.Mark.add(period)
	if m.Ended {
		deadline = min(deadline, max(m.Mark, m.EndedAt).add(lim.EndedAgentPeriod))
	}
	if m.Inherited {
		deadline = max(deadline, instant(period))
	}
	return deadline
}
