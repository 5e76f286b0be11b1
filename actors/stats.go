package actors

import (
	"sync/atomic"
	"time"
)

// Stats is a snapshot of a leader's counters. Numbers of things are as of now,
// counts since the leader started.
type Stats struct {
	Term uint64
	// Agents and Clients are sessions; those of them that have an awake actor
	// are in AwakeSessions.
	Agents, Clients, AwakeSessions int
	// Intercepts is the number of live intercept actors.
	Intercepts int
	// AttachedSessions is the number of sessions that some server has said
	// anything about, AttachmentServers that of the servers.
	AttachedSessions, AttachmentServers int
	// Quarantined is the number of intercepts that are left alone for a while
	// because their actor kept failing.
	Quarantined int

	// ReadyAfter is how long it took until every row that was present at the
	// start had its actor; zero before that.
	ReadyAfter time.Duration
	// Hints counts what the projector passed on to intercept actors,
	// HintsDeferred those that found a full mailbox and were kept for later.
	Hints, HintsDeferred uint64
	// Resyncs counts batches that were a difference of two states.
	Resyncs uint64
	// Touches counts Remains of known sessions, UnknownTouches the others.
	Touches, UnknownTouches uint64

	// ExpiriesProposed counts sessions whose expiry was proposed, Expired
	// those of them that were gone afterwards, ExpiriesDropped those that gave
	// a sign of life between the decision and the proposal.
	ExpiriesProposed, Expired, ExpiriesDropped uint64
	// Applied, Refused and Unknown count proposals by their outcome, and
	// NotConfirmed expiries that had no quorum behind them.
	Applied, Refused, Unknown, NotConfirmed uint64

	// What happened to intercepts.
	OwnersAway, OwnersBack, LeasesEnded, AgentsLost, AgentsBack uint64

	// Pauses counts pauses of this process that the janitor noticed, Paused is
	// their length in total.
	Pauses uint64
	Paused time.Duration
}

// counters is the live form of what Stats counts.
type counters struct {
	awake      atomic.Int64
	intercepts atomic.Int64

	readyAfter                                                  atomic.Int64
	hints, hintsDeferred, resyncs                               atomic.Uint64
	touches, unknownTouches                                     atomic.Uint64
	expiriesProposed, expired, expiriesDropped                  atomic.Uint64
	applied, refused, unknown, notConfirmed                     atomic.Uint64
	ownersAway, ownersBack, leasesEnded, agentsLost, agentsBack atomic.Uint64
	pauses                                                      atomic.Uint64
	paused                                                      atomic.Int64
}

// note counts an effect.
func (c *counters) note(e effect) {
	switch e {
	case effectOwnerAway:
		c.ownersAway.Add(1)
	case effectOwnerBack:
		c.ownersBack.Add(1)
	case effectLeaseEnded:
		c.leasesEnded.Add(1)
	case effectAgentsLost:
		c.agentsLost.Add(1)
	case effectAgentsBack:
		c.agentsBack.Add(1)
	}
}

// Stats returns the counters.
func (l *Leader) Stats() Stats {
	c := &l.counters
	s := Stats{
		Term:             l.cfg.Term,
		AwakeSessions:    int(c.awake.Load()),
		Intercepts:       int(c.intercepts.Load()),
		Quarantined:      l.quarantine.size(),
		ReadyAfter:       time.Duration(c.readyAfter.Load()),
		Hints:            c.hints.Load(),
		HintsDeferred:    c.hintsDeferred.Load(),
		Resyncs:          c.resyncs.Load(),
		Touches:          c.touches.Load(),
		UnknownTouches:   c.unknownTouches.Load(),
		ExpiriesProposed: c.expiriesProposed.Load(),
		Expired:          c.expired.Load(),
		ExpiriesDropped:  c.expiriesDropped.Load(),
		Applied:          c.applied.Load(),
		Refused:          c.refused.Load(),
		Unknown:          c.unknown.Load(),
		NotConfirmed:     c.notConfirmed.Load(),
		OwnersAway:       c.ownersAway.Load(),
		OwnersBack:       c.ownersBack.Load(),
		LeasesEnded:      c.leasesEnded.Load(),
		AgentsLost:       c.agentsLost.Load(),
		AgentsBack:       c.agentsBack.Load(),
		Pauses:           c.pauses.Load(),
		Paused:           time.Duration(c.paused.Load()),
	}
	s.Agents, s.Clients = l.sessions.size()
	s.AttachedSessions, s.AttachmentServers = l.attachments.size()
	return s
}
