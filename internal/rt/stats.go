package rt

import (
	"sync/atomic"
	"time"
)

// slowHandler is how long Handle may take before it counts as slow: an actor
// that takes longer probably waits for something inside Handle.
const slowHandler = 10 * time.Millisecond

// Stats is a snapshot of the counters of a System.
type Stats struct {
	// Kinds has the counters of each Spec.Kind. Groups are of kind "group".
	Kinds map[string]KindStats
}

// KindStats are the counters of all actors of one kind, since the system was
// made.
type KindStats struct {
	// Live is the number of actors now, those waiting for a restart included.
	Live int64
	// Depth is the largest number of messages that one mailbox has held.
	Depth int64
	// Full counts messages refused with ErrFull.
	Full uint64
	// Lost counts messages that were accepted and never handled, because the
	// actor stopped.
	Lost uint64
	// Stale counts results of workers and ticks that came too late for their
	// incarnation.
	Stale uint64
	// Slow counts messages whose handling took longer than 10 ms.
	Slow uint64
	// Failures counts errors and panics of actors and of their workers.
	Failures uint64
	// Restarts counts fresh incarnations after a failure.
	Restarts uint64
	// Quarantined counts actors that were given up.
	Quarantined uint64
}

// counters is the live form of KindStats.
type counters struct {
	epoch time.Time // zero of now

	live, depth                                              atomic.Int64
	full, lost, stale, slow, failures, restarts, quarantined atomic.Uint64
}

// now reads the monotonic clock, which costs half of what time.Now does.
func (c *counters) now() time.Duration { return time.Since(c.epoch) }

func (c *counters) sawDepth(n int64) {
	for {
		old := c.depth.Load()
		if n <= old || c.depth.CompareAndSwap(old, n) {
			return
		}
	}
}

func (c *counters) snapshot() KindStats {
	return KindStats{
		Live:        c.live.Load(),
		Depth:       c.depth.Load(),
		Full:        c.full.Load(),
		Lost:        c.lost.Load(),
		Stale:       c.stale.Load(),
		Slow:        c.slow.Load(),
		Failures:    c.failures.Load(),
		Restarts:    c.restarts.Load(),
		Quarantined: c.quarantined.Load(),
	}
}
