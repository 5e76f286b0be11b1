package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"trivet/internal/tunfwd"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

var networkFaults = []kind{
	{name: "partition", targets: someServer, ways: []string{"servers", "servers and clients"}, run: partition},
	{name: "asymmetric", targets: someServer, ways: []string{"sends nothing", "receives nothing"}, run: asymmetric},
	{name: "bridge", targets: someServer, run: bridge},
	{name: "loss", size: uniform(0.02, 0.15), run: loss},
	{name: "delay", size: uniform(5, 45), run: delay},
	{name: "slow-link", targets: someServer, size: uniform(50e3, 300e3), run: slowLink},
	{name: "client-cut", targets: someServer, run: clientCut},
	{name: "flapping", targets: someServer, size: func(r *rand.Rand) float64 { return float64(3 + r.IntN(5)) }, run: flapping},
	{name: "kill-in-partition", targets: []string{follower}, run: killInPartition},
	{name: "snapshot-in-partition", targets: []string{follower}, run: snapshotInPartition},
}

// links are the pairs between a server and the other servers, out and in.
func (c *Cluster) links(s *Server) (out, in []tunfwd.Pair) {
	for _, o := range c.others(s.Index) {
		out = append(out, tunfwd.Pair{From: s.Name, To: o.Name})
		in = append(in, tunfwd.Pair{From: o.Name, To: s.Name})
	}
	return out, in
}

// between are the pairs of all servers.
func (c *Cluster) between() []tunfwd.Pair {
	var pairs []tunfwd.Pair
	for _, s := range c.Servers {
		out, _ := c.links(s)
		pairs = append(pairs, out...)
	}
	return pairs
}

// disturbNet sets a rule on pairs, holds, wants it to have been felt and heals.
func (x *execution) disturbNet(ctx context.Context, pairs []tunfwd.Pair, r tunfwd.Rule, cause string, of func(tunfwd.Counters) uint64) error {
	before := x.c.Net.Counters()
	defer x.c.Net.Heal()
	for _, p := range pairs {
		if err := x.c.Net.Set(p.From, p.To, r); err != nil {
			return err
		}
	}
	if err := x.serve(ctx); err != nil {
		return err
	}
	return x.dropped(before, pairs, cause, of)
}

func cuts(c tunfwd.Counters) uint64   { return c.Cut }
func losses(c tunfwd.Counters) uint64 { return c.Lost }
func waits(c tunfwd.Counters) uint64  { return c.Waited }

var cut = tunfwd.Rule{Cut: true}

func partition(ctx context.Context, x *execution) error {
	out, in := x.c.links(x.target)
	pairs := append(out, in...)
	if x.step.Way == "servers and clients" {
		pairs = append(pairs, tunfwd.Pair{From: x.target.Name, To: clientHost}, tunfwd.Pair{From: clientHost, To: x.target.Name})
	}
	return x.disturbNet(ctx, pairs, cut, "cut", cuts)
}

func asymmetric(ctx context.Context, x *execution) error {
	pairs, in := x.c.links(x.target)
	if x.step.Way == "receives nothing" {
		pairs = in
	}
	return x.disturbNet(ctx, pairs, cut, "cut", cuts)
}

// bridge cuts two servers from each other; the third sees both.
func bridge(ctx context.Context, x *execution) error {
	other := x.c.others(x.target.Index)[x.rnd.IntN(2)]
	pairs := []tunfwd.Pair{{From: x.target.Name, To: other.Name}, {From: other.Name, To: x.target.Name}}
	return x.disturbNet(ctx, pairs, cut, "cut", cuts)
}

func loss(ctx context.Context, x *execution) error {
	return x.disturbNet(ctx, x.c.between(), tunfwd.Rule{Loss: x.step.Size}, "lost", losses)
}

// delay is of so many milliseconds, and up to as many more. Round trips stay
// below the leader's lease of 250 ms: beyond it operators have to raise the
// Raft multiplier.
func delay(ctx context.Context, x *execution) error {
	d := time.Duration(x.step.Size * float64(time.Millisecond))
	return x.disturbNet(ctx, x.c.between(), tunfwd.Rule{Delay: d, Jitter: d}, "delayed", waits)
}

// slowLink limits what a server and the others exchange to so many bytes per
// second.
func slowLink(ctx context.Context, x *execution) error {
	out, in := x.c.links(x.target)
	return x.disturbNet(ctx, append(out, in...), tunfwd.Rule{Rate: x.step.Size}, "slowed", waits)
}

func clientCut(ctx context.Context, x *execution) error {
	pairs := []tunfwd.Pair{{From: x.target.Name, To: clientHost}, {From: clientHost, To: x.target.Name}}
	return x.disturbNet(ctx, pairs, cut, "cut", cuts)
}

// flapping cuts and heals again and again.
func flapping(ctx context.Context, x *execution) error {
	before := x.c.Net.Counters()
	defer x.c.Net.Heal()
	out, in := x.c.links(x.target)
	pairs := append(out, in...)
	for range int(x.step.Size) {
		for _, r := range []tunfwd.Rule{cut, {}} {
			for _, p := range pairs {
				if err := x.c.Net.Set(p.From, p.To, r); err != nil {
					return err
				}
			}
			if err := x.rest(ctx, time.Duration(between(x.rnd, 100, 800))*time.Millisecond); err != nil {
				return err
			}
		}
	}
	if err := x.serve(ctx); err != nil {
		return err
	}
	return x.dropped(before, pairs, "cut", cuts)
}

// rest waits, as part of what a fault does.
func (x *execution) rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killInPartition takes the majority away for a while: the leader dies while a
// follower is cut off. What is left then has to agree without the leader.
func killInPartition(ctx context.Context, x *execution) error {
	out, in := x.c.links(x.target)
	pairs := append(out, in...)
	before := x.c.Net.Counters()
	first, _, err := x.c.leader(ctx)
	if err != nil {
		return err
	}
	victim := x.c.Servers[first]
	if victim == x.target {
		victim = x.c.others(x.target.Index)[0] // leadership moved a moment ago
	}
	err = func() error {
		defer x.c.Net.Heal()
		for _, p := range pairs {
			if err := x.c.Net.Set(p.From, p.To, cut); err != nil {
				return err
			}
		}
		if err := x.rest(ctx, x.step.hold()/2); err != nil {
			return err
		}
		if err := x.killed(ctx, victim); err != nil {
			return err
		}
		return x.hold(ctx)
	}()
	if err == nil {
		err = x.dropped(before, pairs, "cut", cuts)
	}
	if err == nil {
		err = x.serve(ctx)
	}
	if err != nil {
		return err
	}
	return x.revive(victim)
}

// floodWrites is more than what the log's cache of 512 entries gives out
// although a snapshot has dropped it.
const floodWrites = 800

// flood makes so many writes through a server, one after the other so that
// each is an entry of the log.
func (c *Cluster) flood(ctx context.Context, s *Server, n int) error {
	for range n {
		req := &operatorv1.PutConfigRequest{Key: "flood", Value: []byte("flood")}
		if _, err := c.operator(s.Index).PutConfig(ctx, req); err != nil {
			return fmt.Errorf("write through %s: %w", s.Name, err)
		}
	}
	return nil
}

// snapshotInPartition keeps a follower away until the others have dropped the
// part of the log that it needs, so that it has to take a snapshot.
func snapshotInPartition(ctx context.Context, x *execution) error {
	out, in := x.c.links(x.target)
	log := x.target.logged()
	before, rival := x.c.Net.Counters(), x.c.others(x.target.Index)
	first, err := snapshots(rival[0])
	if err != nil {
		return err
	}
	err = func() error {
		defer x.c.Net.Heal()
		for _, p := range append(out, in...) {
			if err := x.c.Net.Set(p.From, p.To, cut); err != nil {
				return err
			}
		}
		if err := x.serve(ctx); err != nil {
			return err
		}
		wctx, cancel := context.WithTimeout(ctx, snapshotWithin)
		defer cancel()
		if err := x.c.flood(wctx, rival[0], floodWrites); err != nil {
			return err
		}
		return poll(wctx, rival[0].Name+" took no snapshots", func(context.Context) error {
			now, err := snapshots(rival[0])
			if err == nil && (len(now) == 0 || len(first) > 0 && now[0] <= first[len(first)-1]) {
				err = fmt.Errorf("it has %v, and had %v", now, first)
			}
			return err
		})
	}()
	if err != nil {
		return err
	}
	if err := x.dropped(before, append(out, in...), "cut", cuts); err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, healWithin)
	defer cancel()
	return poll(wctx, x.target.Name+" installed no snapshot", func(context.Context) error {
		return x.heard(x.target, log, "nstalled remote snapshot")
	})
}
