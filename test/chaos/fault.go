package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"trivet/internal/tunfwd"
)

// kind is a kind of fault.
type kind struct {
	name    string
	targets []string
	ways    []string
	size    func(*rand.Rand) float64
	// hooks says that the server must be built for it.
	hooks bool
	// members says that the servers must be able to change their number.
	members bool
	// run disturbs, holds and heals. It returns an error when the fault did
	// not happen or the cluster did not do its work in the meantime.
	run func(context.Context, *execution) error
}

// Targets.
const (
	leader   = "leader"
	follower = "follower"
)

var someServer = []string{leader, follower}

// kinds are all kinds of faults, in the order of their files.
func kinds() []kind {
	var out []kind
	for _, group := range [][]kind{processFaults, networkFaults, diskFaults, memberFaults} {
		out = append(out, group...)
	}
	return out
}

const (
	// serveWithin is how long after the beginning of a fault that leaves a
	// majority alone the cluster may take to acknowledge writes again, far above
	// what it takes on an idle machine.
	serveWithin = 15 * time.Second
	// served is how many acknowledged writes prove that it does.
	served = 10
	// healWithin bounds what a fault does to end itself.
	healWithin = 30 * time.Second
)

// execution is one step while it runs.
type execution struct {
	run    *Run
	c      *Cluster
	step   Step
	rnd    *rand.Rand
	target *Server
	began  time.Time

	evidence []string
	// outage is how long it took until the first write after the beginning was
	// acknowledged; it is set by serve.
	outage time.Duration
	// ending may end itself because of the fault, even some time after the
	// fault's end; it is nil for all other faults.
	ending *Server
}

// happened notes what proves that the fault was real.
func (x *execution) happened(format string, args ...any) {
	x.evidence = append(x.evidence, fmt.Sprintf(format, args...))
}

// choose finds the target of the step.
func (x *execution) choose(ctx context.Context) error {
	switch x.step.Target {
	case "":
		return nil
	case leader, follower:
		i, _, err := x.c.leader(ctx)
		if err != nil {
			return err
		}
		if x.step.Target == follower {
			i = (i + 1 + x.rnd.IntN(servers-1)) % servers
		}
		x.target = x.c.Servers[i]
		return nil
	}
	i, err := strconv.Atoi(x.step.Target)
	if err != nil || i < 0 || i >= len(x.c.Servers) {
		return fmt.Errorf("there is no target %q", x.step.Target)
	}
	x.target = x.c.Servers[i]
	return nil
}

// hold waits for the time of the step.
func (x *execution) hold(ctx context.Context) error {
	t := time.NewTimer(time.Until(x.began.Add(x.step.hold())))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serve holds and wants the cluster to acknowledge writes in the meantime. It
// holds longer when that is needed to see it.
func (x *execution) serve(ctx context.Context) error {
	since := x.run.now()
	first, ok := x.run.writes.await(ctx, since, served, serveWithin)
	if first > 0 {
		x.outage = time.Duration(first - since)
	}
	if err := x.hold(ctx); err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("no %d writes were acknowledged within %s although a majority was left alone", served, serveWithin)
	}
	return nil
}

// dropped wants packets of some of the pairs to have met a fate since an
// earlier reading; two followers have little to say to each other.
func (x *execution) dropped(before map[tunfwd.Pair]tunfwd.Counters, pairs []tunfwd.Pair, fate string, of func(tunfwd.Counters) uint64) error {
	now := x.c.Net.Counters()
	var told []string
	total := uint64(0)
	for _, p := range pairs {
		n := of(now[p].Sub(before[p]))
		total += n
		told = append(told, fmt.Sprintf("%s %d", p, n))
	}
	x.happened("packets %s: %s", fate, strings.Join(told, ", "))
	if total == 0 {
		return fmt.Errorf("no packet was %s", fate)
	}
	return nil
}
