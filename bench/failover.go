package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// openTarget is how soon after an election writes are open on a manager that
// holds much, milliseconds.
const openTarget = 200

// FailoverOptions tune the failover bench.
type FailoverOptions struct {
	// Exe is the trivet binary. One that was built with the tag "chaos" is
	// needed for the mode disk.
	Exe string
	// Rounds is how often the leader is taken away, by each mode.
	Rounds int
	// Modes are some of Modes(); empty: all that are possible here.
	Modes []string
	// Dir, when set, holds the servers' data and logs and is kept.
	Dir string
	// Sessions and Intercepts are put into trivet before anything is measured.
	Sessions, Intercepts int
	// NoEtcd leaves etcd out.
	NoEtcd bool
	// Progress is told of each round.
	Progress io.Writer
}

// Failover takes the leader away again and again and measures the time to the
// first acknowledged write. The log is durable; the writes go through gRPC with
// mutual TLS.
func Failover(ctx context.Context, o FailoverOptions) (res *Result, err error) {
	res = NewResult("failover")
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "trivet-bench-"); err != nil {
			return nil, fmt.Errorf("make a directory: %w", err)
		}
		defer os.RemoveAll(o.Dir)
	}
	chosen, err := o.modes(res)
	if err != nil {
		return nil, err
	}
	// Two sets of stores, because on a network that can be cut every packet
	// takes a detour.
	for _, apart := range []bool{false, true} {
		var some []mode
		for _, m := range chosen {
			if m.apart == apart {
				some = append(some, m)
			}
		}
		if len(some) == 0 {
			continue
		}
		if err := failoverOn(ctx, o, apart, some, res); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// modes are the chosen ones, or those that are possible.
func (o FailoverOptions) modes(res *Result) ([]mode, error) {
	if len(o.Modes) > 0 {
		return modesNamed(o.Modes)
	}
	disturbable, err := isDisturbable(o.Exe)
	if err != nil {
		return nil, err
	}
	var out []mode
	for _, m := range modes() {
		switch {
		case m.apart && os.Geteuid() != 0:
			res.Note("mode %s is left out: it needs root for network namespaces", m.name)
		case m.disturbed && !disturbable:
			res.Note("mode %s is left out: %s was not built with -tags chaos", m.name, filepath.Base(o.Exe))
		default:
			out = append(out, m)
		}
	}
	return out, nil
}

// failoverOn starts the stores and runs the modes on them.
func failoverOn(ctx context.Context, o FailoverOptions, apart bool, some []mode, res *Result) (err error) {
	dir := filepath.Join(o.Dir, "near")
	if apart {
		dir = filepath.Join(o.Dir, "apart")
	}
	t, err := newTrivet(trivetOptions{exe: o.Exe, dir: filepath.Join(dir, "trivet"), apart: apart, faults: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := t.start(sctx); err != nil {
		return err
	}
	var people *population
	if o.Sessions > 0 {
		if people, err = populate(ctx, t, o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, people.close()) }()
	}
	stores := []*store{&t.store}
	if st, err := o.etcd(sctx, dir, apart, res); err != nil {
		return err
	} else if st != nil {
		defer func() { err = errors.Join(err, st.close()) }()
		stores = append(stores, st)
	}
	for _, m := range some {
		if err := o.mode(ctx, m, stores, t, people, res); err != nil {
			return fmt.Errorf("mode %s: %w", m.name, err)
		}
	}
	return nil
}

// etcd starts etcd to compare with; nil: without.
func (o FailoverOptions) etcd(ctx context.Context, dir string, apart bool, res *Result) (*store, error) {
	if o.NoEtcd || o.Sessions > 0 {
		return nil, nil
	}
	exe, version, err := findEtcd(ctx)
	if err != nil {
		res.Note("rows of etcd are left out: %v", err)
		return nil, nil
	}
	sub := filepath.Join(dir, "etcd")
	if err := os.MkdirAll(sub, 0o700); err != nil {
		return nil, fmt.Errorf("make etcd's directory: %w", err)
	}
	st, err := newEtcd(etcdOptions{exe: exe, dir: sub, tls: true, apart: apart})
	if err != nil {
		return nil, err
	}
	res.Note("etcd is version %s with its default timeouts, %s", version, st.what)
	if err := st.start(ctx); err != nil {
		return nil, errors.Join(err, st.close())
	}
	return st, nil
}

// mode runs all rounds of one mode on all stores, in turns.
func (o FailoverOptions) mode(ctx context.Context, m mode, stores []*store, t *trivet, people *population, res *Result) error {
	rounds := make(map[*store][]takeover)
	for n := range o.Rounds {
		for _, st := range stores {
			if m.ours && st != &t.store {
				continue
			}
			r, err := failoverRound(ctx, m, st, t, people)
			if err != nil {
				return fmt.Errorf("round %d on %s: %w", n+1, st.name, err)
			}
			rounds[st] = append(rounds[st], r)
			fmt.Fprintf(o.Progress, "%s, round %d of %d, %s: first acknowledged write after %.1f ms\n", m.name, n+1, o.Rounds, st.name, r.first)
		}
	}
	failoverRows(m, stores, t, people, rounds, res)
	return nil
}

func failoverRows(m mode, stores []*store, t *trivet, people *population, rounds map[*store][]takeover, res *Result) {
	of := func(st *store, value func(takeover) float64) []float64 {
		var out []float64
		for _, r := range rounds[st] {
			out = append(out, value(r))
		}
		return out
	}
	for _, st := range stores {
		if len(rounds[st]) == 0 {
			continue
		}
		name := m.what + ": " + st.name
		if people != nil {
			name += ", " + people.what
		}
		firsts := of(st, func(r takeover) float64 { return r.first })
		row := res.Add(name, "first acknowledged write", "ms", firsts)
		if st == &t.store && len(stores) > 1 {
			res.Compare(etcdTLS, firsts, of(stores[1], func(r takeover) float64 { return r.first }))
		}
		res.Add(name, "first write, p95", "ms", []float64{percentile(firsts, 95)})
		res.Add(name, "election", "ms", of(st, func(r takeover) float64 { return r.elected }))
		res.Add(name, "first write at the leader", "ms", of(st, func(r takeover) float64 { return r.leader }))
		open := res.Add(name, "election to first write", "ms", of(st, func(r takeover) float64 { return r.open }))
		if m.keepsLeader {
			res.Add(name, "slowest write", "ms", of(st, func(r takeover) float64 { return r.longest }))
		}
		if st != &t.store {
			continue
		}
		if m.target > 0 && people == nil {
			res.Targets = append(res.Targets, Target{
				Name: name + ", p50", Want: fmt.Sprintf("< %.0f ms", m.target), Got: row.Median, Met: row.Median < m.target,
			})
		}
		if people == nil {
			continue
		}
		lost := res.Add(name, "sessions and intercepts lost", "", of(st, func(r takeover) float64 { return r.lost }))
		res.Targets = append(res.Targets,
			Target{Name: name + ", writes open after the election, p50", Want: fmt.Sprintf("< %d ms", openTarget), Got: open.Median, Met: open.Median < openTarget},
			Target{Name: name + ", sessions and intercepts lost", Want: "0", Got: lost.Max, Met: lost.Max == 0})
	}
}
