package actors

import (
	"time"

	manager "trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// leaseLook bounds the sleep of a lease: its end is a wall-clock time, and the
// wall clock may be set while we wait.
const leaseLook = time.Minute

// interceptMemory is all that the actor of an intercept remembers. The next
// leader rebuilds it from nothing.
type interceptMemory struct {
	// FirstSeen is when this leader first looked at the row; zero for a row
	// that was there when it started.
	FirstSeen instant
	// Asked is the revision of the row for which a command is on its way;
	// zero: none. One at a time keeps commands from contradicting each other.
	Asked uint64
	// Failures counts commands in a row that changed nothing, and RetryAt is
	// when the next may be sent.
	Failures int
	RetryAt  instant
	// Known is false before the first look, after which Disposition is the one
	// seen last.
	Known       bool
	Disposition manager.InterceptDispositionType
}

// owner is what the servers' reports say about the owner of an intercept.
type owner struct {
	// Present: some server holds a dial stream of the owner's session.
	Present bool
	// Since is when that last changed; zero if it never did.
	Since instant
}

// interceptEvent is one reason to decide. Owner and Wall are looked up for
// each: the messages that wake the actor carry no state.
type interceptEvent struct {
	Owner owner
	// Wall is the wall clock, for leases only.
	Wall time.Time
	// Answer is how the command on its way ended; zero: no news of it.
	Answer outcome
}

// decideIntercept decides about an intercept. row is nil when it is gone.
func decideIntercept(row *commandv1.InterceptRow, m interceptMemory, now instant, ev interceptEvent, lim *Limits) (interceptMemory, decision) {
	if row == nil {
		return m, decision{Done: true}
	}
	m, effects := m.observe(row, now, ev, lim)
	cmd, note, wake := wantedOf(row, m, now, ev, lim)
	d := decision{Effects: effects, Wake: wake}
	switch {
	case cmd == nil:
		m.Failures = 0
	case m.Asked != 0:
		d.Wake = 0 // the answer will bring us back
	case m.Failures > 0 && now < m.RetryAt:
		d.Wake = soonest(d.Wake, m.RetryAt.sub(now))
	default:
		m.Asked = row.ModifyRevision
		d.Wake = 0
		d.Commands = []*commandv1.Command{{Op: &commandv1.Command_SetIntercept{SetIntercept: cmd}}}
		if m.Failures == 0 {
			d.Effects = append(d.Effects, note)
		}
	}
	return m, d
}

// observe takes in the answer to the last command and what others did to the
// row.
func (m interceptMemory) observe(row *commandv1.InterceptRow, now instant, ev interceptEvent, lim *Limits) (interceptMemory, []effect) {
	if ev.Answer != 0 {
		if ev.Answer != outcomeUnknown && row.ModifyRevision != m.Asked {
			m.Failures = 0
		} else {
			m.Failures++
			m.RetryAt = now.add(backoff(lim, row.Id, m.Failures))
		}
		m.Asked = 0
	}
	var effects []effect
	if m.Known && row.Disposition != m.Disposition {
		switch {
		case row.Disposition == manager.InterceptDispositionType_NO_AGENT:
			effects = append(effects, effectAgentsLost)
		case m.Disposition == manager.InterceptDispositionType_NO_AGENT:
			effects = append(effects, effectAgentsBack)
		}
	}
	m.Known, m.Disposition = true, row.Disposition
	return m, effects
}

// wantedOf is the change that the row needs, with what to note about it, or
// nil and the time after which it may need one.
func wantedOf(row *commandv1.InterceptRow, m interceptMemory, now instant, ev interceptEvent, lim *Limits) (*commandv1.SetIntercept, effect, time.Duration) {
	cmd := &commandv1.SetIntercept{
		Id:                 row.Id,
		SeenModifyRevision: row.ModifyRevision,
		Disposition:        row.Disposition,
		Message:            row.Message,
		OwnerState:         row.OwnerState,
	}
	var wake time.Duration
	if row.LeaseUntil != 0 {
		left := time.Duration(row.LeaseUntil - ev.Wall.UnixNano())
		if left <= 0 {
			cmd.Remove = true
			return cmd, effectLeaseEnded, 0
		}
		wake = min(left, leaseLook)
	}
	active := row.Disposition == manager.InterceptDispositionType_ACTIVE
	waiting := row.Disposition == manager.InterceptDispositionType_WAITING
	away := row.OwnerState == commandv1.OwnerState_OWNER_STATE_AWAY

	switch {
	case ev.Owner.Present && away && active:
		cmd.OwnerState = commandv1.OwnerState_OWNER_STATE_REARMING
		return cmd, effectOwnerBack, 0
	case ev.Owner.Present && away:
		cmd.OwnerState = commandv1.OwnerState_OWNER_STATE_PRESENT
		return cmd, effectOwnerBack, 0
	case !ev.Owner.Present && !away && (active || waiting):
		lost := max(ev.Owner.Since, m.FirstSeen)
		judge := max(lost.add(lim.OwnerGrace), instant(lim.FailoverGrace))
		if now < judge {
			return nil, 0, soonest(wake, judge.sub(now))
		}
		cmd.OwnerState = commandv1.OwnerState_OWNER_STATE_AWAY
		return cmd, effectOwnerAway, 0
	default:
		return nil, 0, wake
	}
}
