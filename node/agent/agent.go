package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"trivet/internal/rt"
	"trivet/node/heart"
	"trivet/node/link"
	"trivet/node/steal"
	"trivet/node/workload"
	"trivet/proto/telepresence/manager"
)

const (
	// attachMin and attachMax are the wait before the next attempt to attach.
	attachMin = 500 * time.Millisecond
	attachMax = 10 * time.Second
	// rearmEvery is the wait before the next attempt to arm a port that the
	// manager takes for served.
	rearmEvery = 2 * time.Second
	// mailbox is how many messages may wait; the worker that follows the
	// manager waits for room.
	mailbox = 32
)

// Config describes an agent.
type Config struct {
	Pod *workload.Pod
	// Node and Version are for people to read.
	Node, Version string
	Pool          *link.Pool
	// Attach returns the backend for the pod, which belongs to the agent.
	Attach  func(context.Context, *workload.Pod) (steal.Backend, error)
	Heart   *heart.Heart
	Tunnels *Tunnels
	Logger  *slog.Logger
	Metrics *Metrics
}

// Agent is a running agent.
type Agent struct {
	cfg     Config
	ref     rt.Ref[Msg]
	session *atomic.Pointer[string]
}

// Spawn starts an agent.
func Spawn(parent rt.Parent, cfg Config) (*Agent, error) {
	cfg.Logger = cfg.Logger.With("pod", cfg.Pod.Namespace+"/"+cfg.Pod.Name)
	a := &Agent{cfg: cfg, session: &atomic.Pointer[string]{}}
	ref, err := rt.Spawn(parent, rt.Spec[Msg]{
		Name: cfg.Pod.Name, Kind: "agent", Capacity: mailbox,
		Restart: rt.RestartPolicy{Max: 5 * time.Second, Intensity: 20},
		New:     func() rt.Behavior[Msg] { return &actor{Agent: a} },
	})
	if err != nil {
		return nil, fmt.Errorf("start agent: %w", err)
	}
	a.ref = ref
	return a, nil
}

// Pod returns the pod that the agent serves.
func (a *Agent) Pod() *workload.Pod { return a.cfg.Pod }

// Done is closed when the agent has ended, asked to or because it failed too
// often.
func (a *Agent) Done() <-chan struct{} { return a.ref.Done() }

// Retire stops the agent: its connections that wait for a tunnel go to the
// app, open ones go on. Then it tells the manager, if that can be done at
// once.
func (a *Agent) Retire(ctx context.Context) error {
	if err := a.ref.Stop(ctx); err != nil {
		return err
	}
	id := a.session.Load()
	if id == nil {
		return nil
	}
	if err := depart(ctx, a.cfg.Pool, *id); err != nil {
		a.cfg.Logger.Debug("manager was not told that the agent is gone", "session", *id, "err", link.Describe(err))
	}
	return nil
}

// actor is one incarnation of an agent.
type actor struct {
	*Agent

	// fresh is a backend on its way from the worker that got it.
	fresh    atomic.Pointer[steal.Backend]
	pod      *attached // nil until attached
	trouble  error     // why the pod is not attached
	backoff  link.Backoff
	list     []*manager.InterceptInfo
	listed   bool
	current  bool              // list came by the stream that is open
	serving  map[uint16]string // port -> intercept
	armed    map[uint16]bool
	reviews  map[string]*review // by intercept
	rearming bool               // a recheck is due because a port was not armed
}

// Start implements rt.Behavior.
func (a *actor) Start(ctx *rt.Ctx[Msg]) error {
	a.backoff = link.Backoff{Min: attachMin, Max: attachMax}
	a.serving, a.armed, a.reviews = map[uint16]string{}, map[uint16]bool{}, map[string]*review{}
	a.attach(ctx)
	self := ctx.Self()
	keeper := &sessionKeeper{
		pod: a.cfg.Pod, version: a.cfg.Version, pool: a.cfg.Pool, logger: a.cfg.Logger, metrics: a.cfg.Metrics,
		id:   a.session,
		push: func(ctx context.Context, m Msg) error { return self.Push(ctx, m) },
	}
	ctx.Go("session", func(ctx context.Context) Msg {
		keeper.run(ctx)
		return workerDone{}
	})
	return nil
}

// Handle implements rt.Behavior.
func (a *actor) Handle(ctx *rt.Ctx[Msg], m Msg) error {
	switch m := m.(type) {
	case attachResult:
		a.onAttached(ctx, m)
	case reattach:
		a.attach(ctx)
	case arrived:
		// The manager may have forgotten what this agent told another server;
		// what it wants to hear comes with the next snapshot.
		a.reviews, a.current = map[string]*review{}, false
	case snapshot:
		a.list, a.listed, a.current = m.intercepts, true, true
		a.apply(ctx)
	case reviewed:
		a.onReviewed(ctx, m)
	case recheck:
		a.rearming = false
		a.apply(ctx)
	case workerDone:
	}
	return nil
}

// Stop implements rt.Behavior. The accept loop has disarmed the pod by now.
func (a *actor) Stop(*rt.Ctx[Msg], rt.Reason) {
	a.cfg.Metrics.armed.Sub(float64(len(a.armed)))
	if a.pod != nil {
		a.pod.routes.close()
		a.pod.release()
	}
	if b := a.fresh.Swap(nil); b != nil {
		a.discard(*b)
	}
}

func (a *actor) discard(b steal.Backend) {
	if err := b.Close(); err != nil {
		a.cfg.Logger.Warn("attachment did not close in order", "err", err)
	}
}

// attach asks for the backend.
func (a *actor) attach(ctx *rt.Ctx[Msg]) {
	ctx.Go("attach", func(ctx context.Context) Msg {
		backend, err := a.cfg.Attach(ctx, a.cfg.Pod)
		if err == nil {
			a.fresh.Store(&backend)
		}
		return attachResult{err}
	})
}

func (a *actor) onAttached(ctx *rt.Ctx[Msg], m attachResult) {
	var backend steal.Backend
	err := m.err
	if b := a.fresh.Swap(nil); b != nil {
		backend = *b
		// What a process before this one has armed is nobody's now.
		if err = disarmAll(backend); err != nil {
			a.discard(backend)
		}
	}
	if err != nil {
		a.trouble = err
		a.cfg.Metrics.armFailures.Inc()
		a.cfg.Logger.Error("agent is not attached to its pod", "err", err)
		ctx.After(a.backoff.Next(), reattach{})
		a.apply(ctx)
		return
	}
	a.trouble = nil
	a.backoff.Reset()
	a.pod = &attached{
		name: a.cfg.Pod.Namespace + "/" + a.cfg.Pod.Name, backend: backend, routes: newRoutes(),
		logger: a.cfg.Logger, session: a.session, users: 1,
	}
	loop := &acceptor{pod: a.pod, tunnels: a.cfg.Tunnels, heart: a.cfg.Heart}
	ctx.Go("accept", func(ctx context.Context) Msg {
		loop.run(ctx)
		return workerDone{}
	})
	a.apply(ctx)
}

// apply makes the pod as the last snapshot wants it.
func (a *actor) apply(ctx *rt.Ctx[Msg]) {
	if !a.listed || (a.pod == nil && a.trouble == nil) {
		return // too early
	}
	p := decide(a.cfg.Pod, a.serving, a.list)
	failed := map[uint16]error{}
	if a.pod != nil {
		failed = a.rearm(p)
	}
	a.serving = map[uint16]string{}
	for port, s := range p.Ports {
		err := failed[port]
		if a.pod == nil {
			err = a.trouble
		}
		switch {
		case err == nil:
			a.serving[port] = s.Intercept
			if s.Waiting {
				a.review(ctx, s.Intercept, a.approval(s))
			}
		case s.Waiting:
			a.review(ctx, s.Intercept, disapproval(fmt.Sprintf("cannot intercept port %d: %v", port, err)))
		default:
			a.retryArming(ctx)
		}
	}
	for _, r := range p.Refusals {
		a.review(ctx, r.Intercept, disapproval(r.Message))
	}
	a.forgetReviews()
}

// rearm arms the ports of the plan and no others, and returns those that could
// not be armed.
func (a *actor) rearm(p plan) map[uint16]error {
	targets := make(map[uint16]target, len(p.Ports))
	for port, s := range p.Ports {
		targets[port] = s.target
	}
	// First where connections go, then that they come.
	a.pod.routes.set(targets)
	failed := map[uint16]error{}
	for port := range p.Ports {
		if a.armed[port] {
			continue
		}
		if err := arm(a.cfg.Pod, a.pod.backend, port); err != nil {
			failed[port] = err
			delete(targets, port)
			a.cfg.Metrics.armFailures.Inc()
			a.cfg.Logger.Error("port is not armed", "port", port, "err", err)
			_ = disarm(a.cfg.Pod, a.pod.backend, port) // of what was armed before the error
			continue
		}
		a.armed[port] = true
		a.cfg.Metrics.armed.Inc()
		a.cfg.Logger.Info("port is armed", "port", port, "intercept", p.Ports[port].Intercept)
	}
	for port := range a.armed {
		if _, wanted := p.Ports[port]; wanted {
			continue
		}
		if err := disarm(a.cfg.Pod, a.pod.backend, port); err != nil {
			// Its connections go to the app by way of this process.
			a.cfg.Logger.Error("port is not disarmed", "port", port, "err", err)
			continue
		}
		delete(a.armed, port)
		a.cfg.Metrics.armed.Dec()
		a.cfg.Logger.Info("port is disarmed", "port", port)
	}
	if len(failed) > 0 {
		a.pod.routes.set(targets)
	}
	return failed
}

// retryArming has everything looked at again in a while.
func (a *actor) retryArming(ctx *rt.Ctx[Msg]) {
	if !a.rearming {
		a.rearming = true
		ctx.After(rearmEvery, recheck{})
	}
}
