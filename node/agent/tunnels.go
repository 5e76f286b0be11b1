package agent

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"time"

	"trivet/internal/rt"
	"trivet/node/link"
)

// Limits of a process. They keep a flood of connections, or an owner that does
// not answer, from taking the node down.
const (
	// MaxOpen is how many stolen connections may be open; more are reset.
	MaxOpen = 8192
	// MaxHeld is how many of a pod may wait for a tunnel; more go to the app
	// at once.
	MaxHeld = 1024
	// HoldFor is how long one may wait, counted from when it was accepted.
	HoldFor = 5 * time.Second
)

// queue is how many connections may be on their way to Tunnels; the actor does
// nothing but start their workers.
const queue = 1024

// TunnelsConfig describes Tunnels.
type TunnelsConfig struct {
	Pool    *link.Pool
	Metrics *Metrics
	Logger  *slog.Logger
	// MaxOpen, MaxHeld and HoldFor are the limits; zero means the constants of
	// these names.
	MaxOpen int
	MaxHeld int
	HoldFor time.Duration
}

// Tunnels owns the stolen connections of a process. Each has a worker of its
// actor; their bytes pass no mailbox.
type Tunnels struct {
	cfg TunnelsConfig
	ref rt.Ref[tunnelsMsg]
}

// tunnelsMsg is a message to the actor behind Tunnels.
type tunnelsMsg interface{ isTunnelsMsg() }

// take starts a connection.
type take struct{ stolen }

// ended reports that a connection is over.
type connEnded struct{}

// drained asks to be told when none is open.
type drained struct{ reply rt.Reply[struct{}] }

func (take) isTunnelsMsg()      {}
func (connEnded) isTunnelsMsg() {}
func (drained) isTunnelsMsg()   {}

// SpawnTunnels starts the owner of connections.
func SpawnTunnels(parent rt.Parent, cfg TunnelsConfig) (*Tunnels, error) {
	if cfg.MaxOpen == 0 {
		cfg.MaxOpen = MaxOpen
	}
	if cfg.MaxHeld == 0 {
		cfg.MaxHeld = MaxHeld
	}
	if cfg.HoldFor == 0 {
		cfg.HoldFor = HoldFor
	}
	t := &Tunnels{cfg: cfg}
	ref, err := rt.Spawn(parent, rt.Spec[tunnelsMsg]{
		Name: "tunnels", Kind: "tunnels", Capacity: queue,
		Lost: func(m tunnelsMsg) {
			if m, ok := m.(take); ok {
				t.drop(m.stolen, whyStopping)
			}
		},
		New: func() rt.Behavior[tunnelsMsg] { return &tunnelsActor{tunnels: t} },
	})
	t.ref = ref
	return t, err
}

// take hands a connection over. It never waits.
func (t *Tunnels) take(s stolen) {
	switch err := t.ref.Offer(take{s}); {
	case err == nil:
	case errors.Is(err, rt.ErrFull):
		t.drop(s, whyOpenLimit)
	default:
		t.drop(s, whyStopping)
	}
}

// drop resets a connection that has no worker.
func (t *Tunnels) drop(s stolen, why reason) {
	reset(s.conn)
	s.pod.release()
	t.cfg.Metrics.ended(outReset, why)
}

// Drain waits until no connection is open.
func (t *Tunnels) Drain(ctx context.Context) error {
	_, err := rt.Ask(ctx, t.ref, func(r rt.Reply[struct{}]) tunnelsMsg { return drained{r} })
	return err
}

// Stop resets what is open and waits until all of it has ended.
func (t *Tunnels) Stop(ctx context.Context) error { return t.ref.Stop(ctx) }

// tunnelsActor counts connections and starts their workers.
type tunnelsActor struct {
	tunnels *Tunnels
	open    int
	waiting []rt.Reply[struct{}]
}

func (a *tunnelsActor) Start(*rt.Ctx[tunnelsMsg]) error { return nil }

func (a *tunnelsActor) Handle(ctx *rt.Ctx[tunnelsMsg], m tunnelsMsg) error {
	switch m := m.(type) {
	case take:
		if a.open >= a.tunnels.cfg.MaxOpen {
			a.tunnels.drop(m.stolen, whyOpenLimit)
			break
		}
		a.open++
		a.tunnels.cfg.Metrics.open.Inc()
		ctx.Go("connection", func(ctx context.Context) tunnelsMsg {
			a.tunnels.serve(ctx, m.stolen)
			return connEnded{}
		})
	case connEnded:
		a.open--
	case drained:
		a.waiting = append(a.waiting, m.reply)
	}
	if a.open == 0 {
		for _, r := range a.waiting {
			r.Send(struct{}{})
		}
		a.waiting = nil
	}
	return nil
}

func (a *tunnelsActor) Stop(*rt.Ctx[tunnelsMsg], rt.Reason) {
	for _, r := range a.waiting {
		r.Fail(rt.ErrStopped)
	}
}

// serve runs one connection to its end. A panic is the end of that connection
// and of no other.
func (t *Tunnels) serve(ctx context.Context, s stolen) {
	defer t.cfg.Metrics.open.Dec()
	defer func() {
		if v := recover(); v != nil {
			t.cfg.Logger.Error("connection failed", "pod", s.pod.name, "panic", v, "stack", string(debug.Stack()))
			reset(s.conn)
			t.cfg.Metrics.ended(outReset, whyAgentFailed)
		}
	}()
	c := connection{tunnels: t, stolen: s}
	t.cfg.Metrics.ended(c.run(ctx))
}
