package actors

import (
	"sync"
	"time"
)

// instant is a point of leader time: nanoseconds since the leader started, by
// the monotonic clock, without the time for which the process was paused.
// Wall-clock jumps do not touch it, and a pause moves every deadline by its
// length without visiting one of them.
type instant int64

// add returns the instant d later.
func (t instant) add(d time.Duration) instant { return t + instant(d) }

// sub returns the time from u to t.
func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

// clock makes instants. The janitor's tick drives it: when the tick is more
// than gap late, the process was paused, and leader time stands at the last
// tick until the janitor has accounted for the pause. So nobody who wakes
// before the janitor takes the pause for the silence of a peer.
type clock struct {
	// elapsed is the monotonic clock, base its reading at the start.
	elapsed func() time.Duration
	base    time.Duration
	gap     time.Duration

	mu     sync.Mutex
	last   time.Duration // since base; guarded by mu
	paused time.Duration // guarded by mu
}

// newClock starts leader time at zero. elapsed is a monotonic clock.
func newClock(gap time.Duration, elapsed func() time.Duration) *clock {
	return &clock{elapsed: elapsed, base: elapsed(), gap: gap}
}

// running is the time since the start, pauses included.
func (c *clock) running() time.Duration { return c.elapsed() - c.base }

// now returns the present instant.
func (c *clock) now() instant { return c.at(c.running()) }

// tick tells the clock that the janitor is awake and returns the length of the
// pause that preceded it, zero in the normal case.
func (c *clock) tick() time.Duration { return c.tickAt(c.running()) }

// at is now for an explicit reading of the monotonic clock.
func (c *clock) at(raw time.Duration) instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	if raw-c.last > c.gap {
		raw = c.last
	}
	return instant(raw - c.paused)
}

// tickAt is tick for an explicit reading of the monotonic clock.
func (c *clock) tickAt(raw time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	gap := raw - c.last
	if gap <= 0 {
		return 0
	}
	c.last = raw
	if gap <= c.gap {
		return 0
	}
	c.paused += gap
	return gap
}
