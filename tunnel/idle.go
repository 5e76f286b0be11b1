package tunnel

import (
	"sync/atomic"
	"time"
)

// idleWatch knows when something moved last. Its owner selects on C and asks
// expired; any goroutine may call touch.
type idleWatch struct {
	// C is nil without a limit.
	C <-chan time.Time

	limit time.Duration
	start time.Time
	last  atomic.Int64 // nanoseconds after start
	timer *time.Timer
}

func newIdleWatch(limit time.Duration) *idleWatch {
	w := &idleWatch{limit: limit, start: time.Now()}
	if limit > 0 {
		w.timer = time.NewTimer(limit)
		w.C = w.timer.C
	}
	return w
}

// touch starts the limit anew.
func (w *idleWatch) touch() {
	if w.timer != nil {
		w.last.Store(int64(time.Since(w.start)))
	}
}

// expired is for the owner, after C fired: it reports whether the limit has
// passed, and else waits for the rest of it.
func (w *idleWatch) expired() bool {
	rest := w.limit - (time.Since(w.start) - time.Duration(w.last.Load()))
	if rest <= 0 {
		return true
	}
	w.timer.Reset(rest)
	return false
}

func (w *idleWatch) stop() {
	if w.timer != nil {
		w.timer.Stop()
	}
}
