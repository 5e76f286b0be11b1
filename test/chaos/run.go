package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"trivet/internal/fault"
	"trivet/test/chaos/load"
)

const (
	startWithin = 60 * time.Second
	// wholeWithin bounds how long after the end of a fault all servers are a
	// whole again.
	wholeWithin = 45 * time.Second
	quietWithin = 30 * time.Second
)

// The clients of a run.
const (
	registerClients  = 8
	agentClients     = 4
	interceptClients = 2
	watchClients     = servers + 1
	think            = 20 * time.Millisecond
)

// Run is one chaos run.
type Run struct {
	opts   Options
	kinds  map[string]kind
	began  time.Time
	c      *Cluster
	load   *load.Load
	writes *writes
	result *Result
	steps  *json.Encoder
}

// Execute makes a run. The error is about what made it impossible to go on or
// to judge; whether the manager kept its promises is in the result, which is
// there also with an error, but for one about the options.
func Execute(ctx context.Context, o Options) (*Result, error) {
	if !knownBug(o.Plant) {
		return nil, fmt.Errorf("there is no deliberate bug %q", o.Plant)
	}
	if err := errors.Join(o.validate(), Possible()); err != nil {
		return nil, err
	}
	chosen, left, err := o.chosen()
	if err != nil {
		return nil, err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the run: %w", err)
	}
	if there, err := os.ReadDir(o.Dir); err != nil || len(there) > 0 {
		return nil, errors.Join(err, fmt.Errorf("the directory %s is not empty", o.Dir))
	}
	r := &Run{
		opts: o, kinds: make(map[string]kind), writes: newWrites(),
		result: &Result{Seed: o.Seed, Dir: o.Dir, Plant: o.Plant, LeftOut: left, Faults: make(map[string]int)},
	}
	for _, k := range kinds() {
		r.kinds[k.name] = k
	}
	if len(left) > 0 {
		r.say("left out, because the server was not built with -tags %s: %v", Tags, left)
	}
	return r.result, r.whole(ctx, chosen)
}

// steps is where the steps come from; the source ends with false.
func steps(o Options, chosen []kind) (func() (Step, bool), error) {
	if o.Replay == "" {
		s := newScheduler(o.Seed, chosen)
		return func() (Step, bool) { return s.next(), true }, nil
	}
	r, err := readSchedule(o.Replay)
	if err != nil {
		return nil, err
	}
	return func() (Step, bool) {
		if len(r.steps) == 0 {
			return Step{}, false
		}
		next := r.steps[0]
		r.steps = r.steps[1:]
		return next, true
	}, nil
}

// whole is the run from the first process to the verdict.
func (r *Run) whole(ctx context.Context, chosen []kind) (err error) {
	schedule, err := os.Create(filepath.Join(r.opts.Dir, "schedule.jsonl"))
	if err != nil {
		return fmt.Errorf("record the schedule: %w", err)
	}
	defer func() { err = errors.Join(err, schedule.Close()) }()
	r.steps = json.NewEncoder(schedule)
	if r.c, err = newCluster(r.opts); err != nil {
		return err
	}
	defer func() {
		if err != nil || !r.result.Clean() {
			err = errors.Join(err, r.c.keep())
		}
		err = errors.Join(err, r.c.Close())
	}()
	sctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	if err := r.c.start(sctx); err != nil {
		return err
	}
	next, err := steps(r.opts, r.able(ctx, chosen))
	if err != nil {
		return err
	}
	r.began = time.Now()
	r.say("three servers are up; seed %d", r.opts.Seed)
	r.load = load.Start(ctx, load.Config{
		Access: r.c.access, Servers: servers, Began: r.began, Seed: r.opts.Seed, Registers: registerClients, Agents: agentClients,
		Intercepts: interceptClients, Watches: watchClients, Think: think, OnWrite: r.writes.note,
	})
	err = r.disturb(ctx, next)
	history := r.load.Stop()
	r.result.Took = time.Since(r.began)
	r.result.Longest, _ = r.writes.gap()
	if err == nil {
		err = r.judge(ctx, &history)
	} else if ctx.Err() == nil {
		// It did not come back; what clients saw until then still says much.
		attribute(&history)
		r.result.verdict(&history, nil)
	}
	if err != nil || !r.result.Clean() {
		err = errors.Join(err, r.save("history.json", history))
	}
	return errors.Join(err, r.save("result.json", r.result))
}

// able leaves those kinds out that the servers cannot do.
func (r *Run) able(ctx context.Context, chosen []kind) []kind {
	if r.c.changesMembers(ctx) {
		return chosen
	}
	return slices.DeleteFunc(slices.Clone(chosen), func(k kind) bool {
		if k.members {
			r.result.LeftOut = append(r.result.LeftOut, k.name)
			r.say("left out, because the servers cannot change their members: %s", k.name)
		}
		return k.members
	})
}

func (r *Run) now() int64 { return int64(time.Since(r.began)) }

func (r *Run) say(format string, args ...any) {
	at := time.Duration(0)
	if !r.began.IsZero() {
		at = time.Since(r.began).Round(time.Millisecond)
	}
	fmt.Fprintf(r.opts.Progress, "%9s  %s\n", at, fmt.Sprintf(format, args...))
}

// disturb executes steps until the time is over. It returns an error when the
// cluster does not come back.
func (r *Run) disturb(ctx context.Context, next func() (Step, bool)) error {
	for r.opts.Duration == 0 || time.Since(r.began) < r.opts.Duration {
		step, more := next()
		if !more {
			return nil
		}
		if err := r.steps.Encode(step); err != nil {
			return fmt.Errorf("record the schedule: %w", err)
		}
		done, err := r.execute(ctx, step)
		r.result.Steps = append(r.result.Steps, done)
		if err != nil {
			return err
		}
		t := time.NewTimer(time.Duration(step.Pause) * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// execute makes one step and waits until the cluster is a whole again.
func (r *Run) execute(ctx context.Context, step Step) (StepResult, error) {
	k, ok := r.kinds[step.Fault]
	if !ok {
		return StepResult{Step: step}, fmt.Errorf("there is no fault %q", step.Fault)
	}
	x := &execution{run: r, c: r.c, step: step, rnd: rand.New(rand.NewPCG(r.opts.Seed, uint64(step.N)+1)), began: time.Now()}
	out := StepResult{Step: step, At: r.now()}
	err := x.choose(ctx)
	if err == nil {
		err = k.run(ctx, x)
	}
	out.Evidence, out.Outage = x.evidence, x.outage
	if x.target != nil {
		out.Server = x.target.Name
	}
	r.result.Faults[step.Fault]++
	if err != nil {
		out.Error = err.Error()
	}
	if ctx.Err() != nil {
		return out, ctx.Err()
	}
	if err := r.repair(ctx); err != nil {
		return out, err
	}
	wctx, cancel := context.WithTimeout(ctx, wholeWithin)
	defer cancel()
	out.Whole, err = r.c.awaitWhole(wctx, x.startIfEnded)
	out.Evidence = x.evidence
	if err != nil {
		out.Error = strings.TrimPrefix(out.Error+"; "+err.Error(), "; ")
		r.say("%s at %s: %s", step, out.Server, out.Error)
		return out, fmt.Errorf("%s, after %s: %w", step, wholeWithin, err)
	}
	switch {
	case out.Error != "":
		r.say("%s at %s FAILED: %s (%v)", step, out.Server, out.Error, out.Evidence)
	default:
		r.say("%s at %s: first write after %s, whole %s after its end; %v", step, out.Server,
			out.Outage.Round(time.Millisecond), out.Whole.Round(time.Millisecond), out.Evidence)
	}
	return out, nil
}

// repair takes away what a fault that failed half way has left.
func (r *Run) repair(ctx context.Context) error {
	r.c.Net.Heal()
	var errs []error
	for _, s := range r.c.Servers {
		errs = append(errs, s.Disturb(fault.Faults{}))
		if _, err := os.Stat(filepath.Join(s.Data, ballast)); err == nil {
			errs = append(errs, relieve(s.Data))
		}
		if !s.Running() {
			errs = append(errs, s.Start())
		} else if s.stopped() {
			errs = append(errs, s.Signal(syscall.SIGCONT))
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// save writes something as JSON into the directory of the run.
func (r *Run) save(name string, v any) error {
	raw, err := json.Marshal(v)
	if err == nil {
		err = os.WriteFile(filepath.Join(r.opts.Dir, name), raw, 0o600)
	}
	if err != nil {
		return fmt.Errorf("record the run: %w", err)
	}
	return nil
}
