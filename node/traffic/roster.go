package traffic

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"trivet/internal/rt"
	"trivet/node/agent"
	"trivet/node/workload"
	nodev1 "trivet/proto/trivet/node/v1"
)

const (
	// detachTimeout bounds the end of an attachment.
	detachTimeout = 5 * time.Second
	// respawnAfter is the wait before an agent that failed too often gets
	// another chance.
	respawnAfter = 30 * time.Second
)

// rosterMsg is a message to the roster.
type rosterMsg interface{ isRosterMsg() }

// newOrders: the manager wishes something else.
type newOrders struct{ orders *nodev1.NodeOrders }

// newSet: something else runs here.
type newSet struct{ set *workload.Set }

// agentEnded: an agent has ended, asked to or not.
type agentEnded struct {
	uid   string
	agent *agent.Agent
}

// agentGone: there is nothing left of an agent, so that the next one may start.
type agentGone struct {
	uid   string
	agent *agent.Agent
}

// dismiss retires all agents for good.
type dismiss struct{ reply rt.Reply[struct{}] }

// nothing: a worker has nothing to say.
type nothing struct{}

func (newOrders) isRosterMsg()  {}
func (newSet) isRosterMsg()     {}
func (agentEnded) isRosterMsg() {}
func (agentGone) isRosterMsg()  {}
func (dismiss) isRosterMsg()    {}
func (nothing) isRosterMsg()    {}

// rosterConfig describes the roster.
type rosterConfig struct {
	// parent is where agents are spawned.
	parent rt.Parent
	// agent makes the configuration of a pod's agent.
	agent func(*workload.Pod) agent.Config
	// inFront says whether visitors of a pod connect to the node, not to the
	// app.
	inFront func(*workload.Pod) bool
	// detach ends the attachment to a pod.
	detach func(ctx context.Context, uid string) error
	// held are pods that may be attached and that nobody wants.
	held []string
	// count is told how many agents there are.
	count  func(int)
	first  newOrders
	logger *slog.Logger
	set    *workload.Set
}

// roster keeps one agent for each pod that the manager wants one for and that
// runs here.
type roster struct {
	cfg    rosterConfig
	orders *nodev1.NodeOrders
	set    *workload.Set
	agents map[string]*member
	// closing holds who waits for the end of all agents.
	closing []rt.Reply[struct{}]
	closed  bool
}

// member is an agent of the roster.
type member struct {
	agent    *agent.Agent
	retiring bool
}

func (r *roster) Start(ctx *rt.Ctx[rosterMsg]) error {
	r.agents = map[string]*member{}
	r.orders, r.set = r.cfg.first.orders, r.cfg.set
	want := r.want()
	for _, uid := range r.cfg.held {
		if want[uid] == nil {
			r.detach(ctx, uid)
		}
	}
	r.reconcile(ctx)
	return nil
}

func (r *roster) Handle(ctx *rt.Ctx[rosterMsg], m rosterMsg) error {
	switch m := m.(type) {
	case newOrders:
		r.orders = m.orders
	case newSet:
		r.set = m.set
	case agentEnded:
		r.onEnded(ctx, m)
	case agentGone:
		if now := r.agents[m.uid]; now != nil && now.agent == m.agent {
			delete(r.agents, m.uid)
		}
	case dismiss:
		r.closed = true
		r.closing = append(r.closing, m.reply)
		r.forgetEnded()
	case nothing:
	}
	r.reconcile(ctx)
	return nil
}

func (r *roster) Stop(*rt.Ctx[rosterMsg], rt.Reason) {
	for _, w := range r.closing {
		w.Fail(rt.ErrStopped)
	}
}

// want returns the pods that shall have an agent.
func (r *roster) want() map[string]*workload.Pod {
	out := map[string]*workload.Pod{}
	if r.closed {
		return out
	}
	for _, w := range r.orders.GetAgents() {
		if p := r.set.Pod(w.GetNamespace(), w.GetWorkload(), w.GetPodUid()); p != nil {
			out[p.UID] = p
		}
	}
	// Where the node itself listens in front of an app, visitors depend on it
	// whether or not anybody wants an agent.
	if r.set == nil || r.cfg.inFront == nil {
		return out
	}
	for _, w := range r.set.Workloads {
		for _, p := range w.Pods {
			if r.cfg.inFront(p) {
				out[p.UID] = p
			}
		}
	}
	return out
}

// reconcile starts and retires agents until there are the wanted ones.
func (r *roster) reconcile(ctx *rt.Ctx[rosterMsg]) {
	want := r.want()
	for uid, m := range r.agents {
		if !m.retiring && !reflect.DeepEqual(want[uid], m.agent.Pod()) {
			r.retire(ctx, uid, m, want[uid] == nil && !r.closed)
		}
	}
	for uid, pod := range want {
		if r.agents[uid] == nil {
			r.spawn(ctx, uid, pod)
		}
	}
	r.cfg.count(len(r.agents))
	if r.closed && len(r.agents) == 0 {
		for _, w := range r.closing {
			w.Send(struct{}{})
		}
		r.closing = nil
	}
}

// forgetEnded drops the agents that wait for another chance.
func (r *roster) forgetEnded() {
	for uid, m := range r.agents {
		select {
		case <-m.agent.Done():
			delete(r.agents, uid)
		default:
		}
	}
}

// spawn starts an agent and a worker that waits for its end.
func (r *roster) spawn(ctx *rt.Ctx[rosterMsg], uid string, pod *workload.Pod) {
	a, err := agent.Spawn(r.cfg.parent, r.cfg.agent(pod))
	if err != nil {
		r.cfg.logger.Error("agent was not started", "pod", pod.Name, "err", err)
		return // the group of agents is stopping
	}
	r.agents[uid] = &member{agent: a}
	ctx.Go("await "+uid, func(ctx context.Context) rosterMsg {
		select {
		case <-a.Done():
			return agentEnded{uid, a}
		case <-ctx.Done():
			return nothing{}
		}
	})
}

// retire ends an agent, and its attachment if nobody wants that either.
func (r *roster) retire(ctx *rt.Ctx[rosterMsg], uid string, m *member, detach bool) {
	m.retiring = true
	ctx.Go("retire "+uid, func(ctx context.Context) rosterMsg {
		if m.agent.Retire(ctx) == nil && detach {
			r.detachNow(ctx, uid)
		}
		return agentGone{uid, m.agent}
	})
}

// detach gives a pod back that nobody wants.
func (r *roster) detach(ctx *rt.Ctx[rosterMsg], uid string) {
	ctx.Go("detach "+uid, func(ctx context.Context) rosterMsg {
		r.detachNow(ctx, uid)
		return nothing{}
	})
}

func (r *roster) detachNow(ctx context.Context, uid string) {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	if err := r.cfg.detach(ctx, uid); err != nil {
		r.cfg.logger.Warn("pod was not detached", "uid", uid, "err", err)
	}
}

func (r *roster) onEnded(ctx *rt.Ctx[rosterMsg], m agentEnded) {
	now := r.agents[m.uid]
	if now == nil || now.agent != m.agent || now.retiring {
		return
	}
	// It was given up. What failed that often will not work in a moment.
	now.retiring = true
	r.cfg.logger.Error("agent failed too often and gets another chance later",
		"pod", m.agent.Pod().Name, "after", respawnAfter)
	ctx.After(respawnAfter, agentGone(m))
}
