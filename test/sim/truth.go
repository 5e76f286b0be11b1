package sim

import (
	"time"

	"trivet/fsm"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// sessionTruth is what a session's peer may rely on.
type sessionTruth struct {
	// sign is when the newest keepalive that was answered had been sent.
	sign time.Duration
	// ended is when the peer last ended its streams itself; 0: never.
	ended time.Duration
	// gone is when its row went.
	gone time.Duration
}

func (c *canon) truth(session string) *sessionTruth {
	t := c.sessions[session]
	if t == nil {
		t = &sessionTruth{}
		c.sessions[session] = t
	}
	return t
}

// verdictKey names one wish to expire a session.
type verdictKey struct {
	session    string
	seen, term uint64
}

// judge looks at what a leader proposes, when it does. An expiry that is too
// early is a violation once it takes effect.
func (c *canon) judge(r *replicator, cmds []*commandv1.Command) {
	for _, cmd := range cmds {
		for _, item := range cmd.GetExpireSessions().GetItems() {
			row, ok := r.Root().Session(item.GetSessionId())
			if !ok || row.GetModifyRevision() != item.GetSeenModifyRevision() {
				continue
			}
			key := verdictKey{item.GetSessionId(), item.GetSeenModifyRevision(), r.term}
			delete(c.verdicts, key)
			if least, why := c.least(r, row); c.w.now < least {
				c.verdicts[key] = why + ", too early by " + (least - c.w.now).String()
			}
		}
	}
}

// least is the first moment at which a leader may find a session silent for too
// long, and why.
func (c *canon) least(r *replicator, row *commandv1.SessionRow) (time.Duration, string) {
	lim := limits(NoBug)
	period := lim.AgentPeriod
	client := row.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT
	switch {
	case client:
		period = lim.ClientPeriod
	case row.GetGeneration() == commandv1.Generation_GENERATION_OLDER:
		period = lim.OlderAgentPeriod
	}
	t := c.truth(row.GetId())
	sign, why := t.sign, "a keepalive was answered"
	if changed := c.revisions[row.GetModifyRevision()-1].at; changed > sign {
		sign, why = changed, "the row was changed"
	}
	least := sign + period
	// A peer that ends its streams and opens others elsewhere may be seen to do
	// so in the other order.
	if !client && t.ended > 0 && c.w.now-t.ended < 2*lim.AgentPeriod {
		least = min(least, max(t.ended, sign)+lim.EndedAgentPeriod)
	}
	if row.GetCreateRevision() <= r.start && r.began+period > least {
		return r.began + period, "the leader is new"
	}
	return least, why
}

func (c *canon) sessionChanged(cmd *commandv1.Command, e fsm.Event) {
	w := c.w
	if e.Op != fsm.Delete {
		return
	}
	c.truth(e.Key).gone = w.now
	for _, item := range cmd.GetExpireSessions().GetItems() {
		if item.GetSessionId() != e.Key {
			continue
		}
		w.counts.Expired++
		w.note("expired", e.Key, item.GetSeenModifyRevision(), cmd.GetExpectedTerm())
		if why, early := c.verdicts[verdictKey{e.Key, item.GetSeenModifyRevision(), cmd.GetExpectedTerm()}]; early {
			w.violate("session %s was expired by the leader of term %d: %s", e.Key, cmd.GetExpectedTerm(), why)
		}
	}
}

func claims(d manager.InterceptDispositionType) bool {
	switch d {
	case manager.InterceptDispositionType_ACTIVE, manager.InterceptDispositionType_WAITING, manager.InterceptDispositionType_NO_AGENT:
		return true
	}
	return false
}

// interceptChanged looks at one change; root is the state after its entry.
func (c *canon) interceptChanged(cmd *commandv1.Command, e fsm.Event, root *fsm.Root) {
	w := c.w
	was, _ := e.Old.(*commandv1.InterceptRow)
	is, _ := e.New.(*commandv1.InterceptRow)
	switch {
	case was == nil && is != nil:
		w.counts.Intercepts++
	case is != nil && is.GetOwnerState() != was.GetOwnerState() && is.GetOwnerState() == commandv1.OwnerState_OWNER_STATE_AWAY:
		w.counts.Away++
	case is != nil && is.GetDisposition() != was.GetDisposition() && is.GetDisposition() == manager.InterceptDispositionType_ACTIVE:
		w.counts.Active++
	}
	if cmd.GetSetIntercept().GetRemove() && e.Op == fsm.Delete {
		if left := was.GetLeaseUntil() - epoch.Add(w.now+time.Second).UnixNano(); was.GetLeaseUntil() == 0 || left > 0 {
			w.violate("the lease of %s was ended %v before its time", e.Key, time.Duration(left))
		}
	}
	w.note("intercept", e.Key, uint64(is.GetDisposition()), uint64(is.GetOwnerState()))
	c.noConflict(root)
}

// noConflict looks for two intercepts that want the same traffic, by a rule of
// its own that is right for the intercepts that peers make here.
func (c *canon) noConflict(root *fsm.Root) {
	var rows []*commandv1.InterceptRow
	for row := range root.Intercepts {
		if !claims(row.GetDisposition()) {
			continue
		}
		for _, o := range rows {
			a, b := row.GetSpec().GetHeaderFilters()[filterHeader], o.GetSpec().GetHeaderFilters()[filterHeader]
			if row.GetSpec().GetAgent() == o.GetSpec().GetAgent() && (a == "" || b == "" || a == b) {
				c.w.violate("intercepts %s and %s want the same traffic", o.GetId(), row.GetId())
			}
		}
		rows = append(rows, row)
	}
}
