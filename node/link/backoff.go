package link

import (
	"context"
	"math/rand/v2"
	"time"
)

// Bounds of the wait between two attempts to reach the manager: short, because
// a failover is over in tens of milliseconds and traffic waits for it.
const (
	RedialMin = 20 * time.Millisecond
	RedialMax = 200 * time.Millisecond
)

// Backoff is the wait between attempts: it doubles from Min to Max and varies
// by half, so that those who failed together do not return together. The zero
// value waits from RedialMin to RedialMax.
type Backoff struct {
	Min, Max time.Duration

	next time.Duration
}

// Reset makes the next wait the shortest again.
func (b *Backoff) Reset() { b.next = 0 }

// Next returns how long to wait before the next attempt.
func (b *Backoff) Next() time.Duration {
	lowest, highest := b.Min, b.Max
	if lowest <= 0 {
		lowest = RedialMin
	}
	if highest <= 0 {
		highest = RedialMax
	}
	d := max(b.next, lowest)
	b.next = min(2*d, highest)
	return d/2 + rand.N(d/2+1)
}

// Wait waits for the next attempt, or until ctx ends, and returns ctx's error.
func (b *Backoff) Wait(ctx context.Context) error {
	t := time.NewTimer(b.Next())
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
