package replica

import (
	"sync"
	"time"

	"trivet/internal/fault"
)

// stampClock gives the leader's time: it starts at the wall clock (or at the
// last stamp applied, whichever is later) when leadership begins and from then
// on advances with the monotonic clock, so a step of the wall clock moves no
// deadline.
type stampClock struct {
	mu   sync.Mutex
	base int64
	at   time.Time
}

// start begins a term of leadership. The clock never goes back.
func (c *stampClock) start(lastApplied int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := fault.Now().UnixNano()
	if !c.at.IsZero() {
		wall = max(wall, c.nowLocked())
	}
	c.at = time.Now()
	c.base = max(wall, lastApplied)
}

// raise makes the clock go on from t if it has not come that far.
func (c *stampClock) raise(t int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nowLocked() < t {
		c.at, c.base = time.Now(), t
	}
}

func (c *stampClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nowLocked()
}

func (c *stampClock) nowLocked() int64 {
	if c.at.IsZero() {
		return fault.Now().UnixNano()
	}
	return c.base + int64(time.Since(c.at))
}
