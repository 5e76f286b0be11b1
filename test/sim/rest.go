package sim

import (
	"time"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// restTime is within which everything must be where it belongs once nothing
	// disturbs any more: the period of an agent, and room for elections, retries
	// and leases.
	restTime = 2 * time.Minute
	// desertedTime is within which every session must be gone once all peers are.
	desertedTime = 5 * time.Minute
)

// checkAgreement looks whether all servers have the same and one of them leads.
func (w *world) checkAgreement() *server {
	if w.failure != "" {
		return nil
	}
	var leader *server
	for _, s := range w.servers {
		if s.applied != uint64(len(w.canon.entries)) {
			w.violate("at rest %s has applied %d entries of %d", s.name, s.applied, len(w.canon.entries))
		}
		w.canon.checkConfigs(s)
		if s.leads {
			leader = s
		}
		if n := len(s.gateway.here) + len(s.gateway.shown); n > 0 {
			w.violate("at rest %d writes wait at %s", n, s.name)
		}
	}
	if leader == nil || leader.toucher() == nil || leader.lead.rep.term != leader.log.term {
		w.violate("at rest nobody leads")
		return nil
	}
	return leader
}

// checkRest looks whether everything is where its inputs say.
func (w *world) checkRest() {
	leader := w.checkAgreement()
	if leader == nil {
		return
	}
	root := leader.machine.Root()
	bySession := make(map[string]*peer)
	agents := make(map[string]int)
	for _, p := range w.peers {
		if !p.alive {
			continue
		}
		if p.session == "" {
			w.violate("at rest %s has no session", p.name)
			return
		}
		if _, ok := root.Session(p.session); !ok {
			w.violate("at rest the session %s of %s is gone", p.session, p.name)
		}
		bySession[p.session] = p
		if p.agent {
			agents[p.workload]++
		}
	}
	rows := [2]int{}
	for row := range root.Sessions {
		client := row.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT
		if client {
			rows[1]++
			continue
		}
		rows[0]++
		if bySession[row.GetId()] == nil {
			w.violate("at rest the session of the silent agent %s is still there", row.GetId())
		}
	}
	intercepts := 0
	for row := range root.Intercepts {
		intercepts++
		owner := bySession[row.GetSessionId()]
		w.checkIntercept(row, owner != nil && !owner.asleep, agents[row.GetSpec().GetAgent()] > 0)
	}
	st := leader.lead.tree.Stats()
	if st.Agents != rows[0] || st.Clients != rows[1] || st.Intercepts != intercepts || st.AwakeSessions != 0 || st.Quarantined != 0 {
		w.violate("at rest the leader has %d agents, %d clients, %d intercepts, %d awake, %d quarantined; the state has %d, %d, %d",
			st.Agents, st.Clients, st.Intercepts, st.AwakeSessions, st.Quarantined, rows[0], rows[1], intercepts)
	}
}

func (w *world) checkIntercept(row *commandv1.InterceptRow, present, agents bool) {
	d, o := row.GetDisposition(), row.GetOwnerState()
	bad := func(why string) {
		w.violate("at rest intercept %s is %v, owner %v, although %s", row.GetId(), d, o, why)
	}
	away := o == commandv1.OwnerState_OWNER_STATE_AWAY
	active, waiting := d == manager.InterceptDispositionType_ACTIVE, d == manager.InterceptDispositionType_WAITING
	if end := row.GetLeaseUntil(); end != 0 && end < epoch.Add(w.now-5*time.Second).UnixNano() {
		bad("its lease is over")
	}
	switch {
	case !claims(d):
	case !agents && (active || waiting):
		bad("there is no agent")
	case agents && d == manager.InterceptDispositionType_NO_AGENT:
		bad("there is an agent")
	case present && (away || agents && o != commandv1.OwnerState_OWNER_STATE_PRESENT):
		bad("its owner is there")
	case present && agents && !active:
		bad("owner and agent are there")
	case !present && !away && (active || waiting):
		bad("its owner is away")
	}
}

// checkDeserted looks whether nothing is left of peers that have all gone.
func (w *world) checkDeserted() {
	leader := w.checkAgreement()
	if leader == nil {
		return
	}
	for row := range leader.machine.Root().Sessions {
		w.violate("session %s is still there", row.GetId())
	}
	for row := range leader.machine.Root().Intercepts {
		w.violate("intercept %s is still there", row.GetId())
	}
}
