package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"trivet/internal/fault"
	"trivet/internal/tunfwd"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

var processFaults = []kind{
	{name: "kill", targets: someServer, run: kill},
	{name: "kill-two", targets: someServer, run: killTwo},
	{name: "kill-all", run: killAll},
	{name: "stop", targets: someServer, ways: []string{"", onSlowNetwork}, run: stop},
	{name: "stop-all", run: stopAll},
	{name: "restart", targets: someServer, run: restart},
	{name: "rolling-restart", run: rollingRestart},
	{name: "transfer-storm", size: func(r *rand.Rand) float64 { return float64(3 + r.IntN(6)) }, run: transferStorm},
	{name: "clock-jump", targets: someServer, hooks: true, size: func(r *rand.Rand) float64 {
		return []float64{-3600, -60, -5, 5, 60, 3600, 90000}[r.IntN(7)]
	}, run: clockJump},
}

// handOverWithin bounds the attempts to make a certain server lead.
const handOverWithin = 5 * time.Second

// killed kills servers and says so.
func (x *execution) killed(ctx context.Context, victims ...*Server) error {
	for _, s := range victims {
		pid := s.PID()
		if err := s.Kill(ctx); err != nil {
			return err
		}
		x.happened("%s (process %d) died of SIGKILL", s.Name, pid)
	}
	return nil
}

// revive starts servers that were killed.
func (x *execution) revive(victims ...*Server) error {
	for _, s := range victims {
		before := s.PID()
		if err := s.Start(); err != nil {
			return err
		}
		x.happened("%s runs again as %d instead of %d", s.Name, s.PID(), before)
	}
	return nil
}

func kill(ctx context.Context, x *execution) error {
	if err := x.killed(ctx, x.target); err != nil {
		return err
	}
	if err := x.serve(ctx); err != nil {
		return err
	}
	return x.revive(x.target)
}

func killTwo(ctx context.Context, x *execution) error {
	victims := []*Server{x.target, x.c.others(x.target.Index)[x.rnd.IntN(2)]}
	if err := x.killed(ctx, victims...); err != nil {
		return err
	}
	if err := x.hold(ctx); err != nil {
		return err
	}
	return x.revive(victims...)
}

func killAll(ctx context.Context, x *execution) error {
	if err := x.killed(ctx, x.c.Servers...); err != nil {
		return err
	}
	return x.revive(x.c.Servers...)
}

// pause stops servers while f runs.
func (x *execution) pause(ctx context.Context, f func(context.Context) error, victims ...*Server) (err error) {
	defer func() {
		for _, s := range victims {
			err = errors.Join(err, s.Signal(syscall.SIGCONT))
		}
	}()
	for _, s := range victims {
		if err := s.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		err := poll(ctx, "stop "+s.Name, func(context.Context) error {
			if !s.stopped() {
				return errors.New("the kernel does not show it as stopped")
			}
			return nil
		})
		if err != nil {
			return err
		}
		x.happened("%s was stopped", s.Name)
	}
	return f(ctx)
}

const (
	// onSlowNetwork is a way to stop a server in which it is likely to have
	// answers under way to it, that it takes for fresh when it goes on.
	onSlowNetwork = "on a slow network"
	slowNetwork   = 25 * time.Millisecond
	// Reads that wait for a stopped server; more than one of each key.
	asked = 24
	// askedBefore is long enough for them to arrive.
	askedBefore = 100 * time.Millisecond
)

// stop stops a server, and has reads wait for it when it goes on: what it knew
// is old by then.
func stop(ctx context.Context, x *execution) error {
	if x.step.Way == onSlowNetwork {
		defer x.c.Net.Heal()
		for _, p := range x.c.between() {
			if err := x.c.Net.Set(p.From, p.To, tunfwd.Rule{Delay: slowNetwork}); err != nil {
				return err
			}
		}
		if err := x.rest(ctx, time.Second); err != nil {
			return err
		}
	}
	wait := func() {}
	err := x.pause(ctx, func(ctx context.Context) error {
		if err := x.serve(ctx); err != nil {
			return err
		}
		wait = x.run.load.Ask(ctx, x.target.Index, asked)
		return x.rest(ctx, askedBefore)
	}, x.target)
	wait()
	return err
}

// stopAll is what a machine does to all that runs on it when it sleeps.
func stopAll(ctx context.Context, x *execution) error { return x.pause(ctx, x.hold, x.c.Servers...) }

// restart is an orderly one.
func restart(ctx context.Context, x *execution) error {
	pid := x.target.PID()
	if err := x.target.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	st, err := x.target.Wait(wctx)
	if err != nil {
		return err
	}
	if !st.Success() {
		return fmt.Errorf("%s ended after SIGTERM with %s", x.target.Name, st)
	}
	x.happened("%s (process %d) ended by itself", x.target.Name, pid)
	if err := x.serve(ctx); err != nil {
		return err
	}
	return x.revive(x.target)
}

func rollingRestart(ctx context.Context, x *execution) error {
	for _, s := range x.c.Servers {
		x.target = s
		if err := restart(ctx, x); err != nil {
			return err
		}
		wctx, cancel := context.WithTimeout(ctx, healWithin)
		_, err := x.c.awaitWhole(wctx, nil)
		cancel()
		if err != nil {
			return fmt.Errorf("after the restart of %s: %w", s.Name, err)
		}
	}
	return nil
}

// clockJump makes the wall clock of a server wrong by so many seconds, and has
// that server lead for as long as it will: a leader's clock is everybody's.
func clockJump(ctx context.Context, x *execution) error {
	offset := time.Duration(x.step.Size * float64(time.Second))
	return x.disturbed(ctx, fault.Faults{ClockOffset: offset}, func(ctx context.Context) error {
		// Away first: a leader reads the wall clock when it begins to lead.
		for _, to := range []*Server{x.c.others(x.target.Index)[0], x.target} {
			// A server that knows that its clock is wrong may well refuse.
			x.happened("leadership handed to %s: %v", to.Name, x.c.handOver(ctx, to))
		}
		return x.serve(ctx)
	})
}

// handOver makes a server lead.
func (c *Cluster) handOver(ctx context.Context, to *Server) error {
	ctx, cancel := context.WithTimeout(ctx, handOverWithin)
	defer cancel()
	return poll(ctx, "hand leadership to "+to.Name, func(ctx context.Context) error {
		i, _, err := c.leader(ctx)
		if err != nil || i == to.Index {
			return err
		}
		tctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		_, err = c.operator(i).TransferLeadership(tctx, &operatorv1.TransferLeadershipRequest{To: to.Name})
		if err == nil {
			err = fmt.Errorf("%s leads", c.Servers[i].Name)
		}
		return err
	})
}
