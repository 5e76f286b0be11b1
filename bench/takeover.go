package bench

import (
	"context"
	"fmt"
	"time"
)

// roundTimeout bounds one round, the healing included.
const roundTimeout = 90 * time.Second

// takeover is what one failover came to, in milliseconds.
type takeover struct {
	// first is from the fault to the first acknowledged write, leader to the
	// first through the new leader itself, open from the election to that.
	// longest is how long the slowest write took.
	first, leader, open, longest float64
	// elected is from the fault to the election.
	elected float64
	// lost is how many sessions and intercepts were missing afterwards.
	lost float64
}

// failoverRound takes the leader away once; it ends with all servers up.
func failoverRound(ctx context.Context, m mode, st *store, t *trivet, people *population) (takeover, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	leader, err := st.leader(ctx)
	if err != nil {
		return takeover{}, err
	}
	p, err := connectProbes(ctx, st)
	if err != nil {
		return takeover{}, err
	}
	defer func() { _ = p.close() }() // the connections have served
	said := make([]int64, len(st.procs))
	for i, proc := range st.procs {
		said[i] = proc.logged()
	}
	but := leader
	if m.keepsLeader {
		but = -1
	}
	at := time.Now()
	if m.keepsLeader {
		// Its strike returns only when it is over.
		p.start(ctx, st, but)
	}
	if err := m.strike(ctx, st, t, leader); err != nil {
		return takeover{}, err
	}
	if !m.keepsLeader {
		p.start(ctx, st, but)
	}
	r, err := watchFailover(ctx, st, p, leader, at, said)
	if err != nil {
		return takeover{}, err
	}
	if err := m.heal(ctx, st, t, leader); err != nil {
		return takeover{}, err
	}
	if err := st.whole(ctx); err != nil {
		return takeover{}, err
	}
	if people != nil && st == &t.store {
		r.lost, err = people.missing(ctx)
	}
	return r, err
}

// watchFailover waits until a new leader takes writes and stops the probes.
// Only writes that were acknowledged after the election count: one that the old
// leader had committed may be answered later than the fault.
func watchFailover(ctx context.Context, st *store, p *probes, old int, at time.Time, said []int64) (takeover, error) {
	next := -1
	var elected time.Time
	err := until(ctx, func() (bool, error) {
		for i, proc := range st.procs {
			if i == old {
				continue
			}
			text, err := proc.said(said[i])
			if err != nil {
				return false, err
			}
			if when, ok := st.elected(text); ok && when.After(elected) && when.After(at.Add(-time.Millisecond)) {
				next, elected = i, when
			}
		}
		if next < 0 {
			return false, nil
		}
		_, ok := p.after(elected, next)
		return ok, nil
	})
	writes := p.stop()
	if err != nil {
		return takeover{}, fmt.Errorf("wait for a new leader and a write through it: %w", err)
	}
	first, _ := p.after(elected, -1)
	through, _ := p.after(elected, next)
	r := takeover{
		first: millis(first.acked.Sub(at)), leader: millis(through.acked.Sub(at)), open: millis(through.acked.Sub(elected)),
		elected: millis(elected.Sub(at)),
	}
	for _, w := range writes {
		r.longest = max(r.longest, millis(w.acked.Sub(w.began)))
	}
	return r, nil
}
