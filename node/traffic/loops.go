package traffic

import (
	"context"

	"trivet/internal/rt"
)

// loopMsg reports that a loop has returned.
type loopMsg struct{}

// loops is an actor that only runs loops, each until its context ends. It
// gives them what a goroutine lacks: a name, a restart with backoff, and
// someone who waits for them.
type loops struct{ run []func(context.Context) }

// spawnLoops starts such an actor.
func spawnLoops(parent rt.Parent, name string, run ...func(context.Context)) error {
	_, err := rt.Spawn(parent, rt.Spec[loopMsg]{
		Name: name, Kind: name,
		// Without them the node is deaf; give the process a new start then.
		Restart: rt.RestartPolicy{OnExceed: rt.Escalate},
		New:     func() rt.Behavior[loopMsg] { return &loops{run: run} },
	})
	return err
}

func (l *loops) Start(ctx *rt.Ctx[loopMsg]) error {
	for _, f := range l.run {
		ctx.Go(ctx.Name(), func(ctx context.Context) loopMsg {
			f(ctx)
			return loopMsg{}
		})
	}
	return nil
}

func (l *loops) Handle(*rt.Ctx[loopMsg], loopMsg) error { return nil }

func (l *loops) Stop(*rt.Ctx[loopMsg], rt.Reason) {}
