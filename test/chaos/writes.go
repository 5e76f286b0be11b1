package chaos

import (
	"context"
	"sync"
	"time"
)

// writes follows the acknowledged writes of the load.
type writes struct {
	mu      sync.Mutex
	waiting map[*writesWait]bool // guarded by mu
	last    int64                // guarded by mu; when the newest was acknowledged
	longest int64                // guarded by mu; between two of them
	at      int64                // guarded by mu; when the longest time without one ended
}

type writesWait struct {
	since, first int64
	left         int
	done         chan struct{}
}

func newWrites() *writes { return &writes{waiting: make(map[*writesWait]bool)} }

// note takes a write in; it is load.Config.OnWrite.
func (w *writes) note(called, returned int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if gap := returned - w.last; gap > w.longest && w.last > 0 {
		w.longest, w.at = gap, returned
	}
	w.last = max(w.last, returned)
	for x := range w.waiting {
		if called < x.since {
			continue
		}
		if x.first == 0 {
			x.first = returned
		}
		if x.left--; x.left == 0 {
			close(x.done)
			delete(w.waiting, x)
		}
	}
}

// await waits until n writes were acknowledged that were called after since,
// and returns when the first of them was, 0 if none.
func (w *writes) await(ctx context.Context, since int64, n int, within time.Duration) (first int64, ok bool) {
	x := &writesWait{since: since, left: n, done: make(chan struct{})}
	w.mu.Lock()
	w.waiting[x] = true
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	select {
	case <-x.done:
		ok = true
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, x)
	return x.first, ok
}

// gap is the longest time without an acknowledged write, and when it ended.
func (w *writes) gap() (longest time.Duration, at int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.longest), w.at
}
