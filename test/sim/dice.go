package sim

import (
	"math/rand/v2"
	"time"
)

// dice are a stream of choices.
type dice struct{ r *rand.Rand }

// newDice makes a stream of its own for each purpose, so that one more choice
// here does not change everything there.
func newDice(seed, purpose uint64) dice {
	return dice{rand.New(rand.NewPCG(seed, purpose))}
}

// n is from 0 to below n.
func (d dice) n(n int) int { return d.r.IntN(n) }

// oneIn is true once in n times.
func (d dice) oneIn(n int) bool { return d.r.IntN(n) == 0 }

// between is at least lo and below hi.
func (d dice) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(d.r.Int64N(int64(hi-lo)))
}
