package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff paces attempts: redialMin, doubled each time up to redialMax, give
// or take a quarter. The zero value is ready.
type backoff struct {
	next time.Duration
}

// wait pauses before the next attempt; false: ctx ended first.
func (b *backoff) wait(ctx context.Context) bool {
	return b.waitAtLeast(ctx, 0)
}

// waitAtLeast is wait with a lower bound that somebody asked for.
func (b *backoff) waitAtLeast(ctx context.Context, least time.Duration) bool {
	b.next = min(max(2*b.next, redialMin), redialMax)
	pause := b.next*3/4 + rand.N(b.next/2)
	timer := time.NewTimer(max(pause, least))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reset makes the next pause the shortest again.
func (b *backoff) reset() { b.next = 0 }
