package replica

import (
	"container/heap"
	"context"
	"sync"
)

// waitList wakes callers once the state machine has passed a point. Raft's own
// applied index runs ahead of the state machine, so it cannot serve for that.
type waitList struct {
	mu       sync.Mutex
	revision uint64
	index    uint64
	byRev    waitHeap
	byIndex  waitHeap
}

type waiter struct {
	at   uint64
	done chan struct{}
	pos  int
}

func (w *waitList) advance(revision, index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revision, w.index = revision, index
	for len(w.byRev) > 0 && w.byRev[0].at <= revision {
		close(heap.Pop(&w.byRev).(*waiter).done)
	}
	for len(w.byIndex) > 0 && w.byIndex[0].at <= index {
		close(heap.Pop(&w.byIndex).(*waiter).done)
	}
}

// pass wakes those who wait for an index up to this one, which the state
// machine will not get to see.
func (w *waitList) pass(index uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.byIndex) > 0 && w.byIndex[0].at <= index {
		close(heap.Pop(&w.byIndex).(*waiter).done)
	}
}

func (w *waitList) waitRevision(ctx context.Context, revision uint64) error {
	return w.wait(ctx, &w.byRev, &w.revision, revision)
}

func (w *waitList) waitIndex(ctx context.Context, index uint64) error {
	return w.wait(ctx, &w.byIndex, &w.index, index)
}

func (w *waitList) wait(ctx context.Context, h *waitHeap, have *uint64, want uint64) error {
	w.mu.Lock()
	if *have >= want {
		w.mu.Unlock()
		return nil
	}
	e := &waiter{at: want, done: make(chan struct{})}
	heap.Push(h, e)
	w.mu.Unlock()
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		w.mu.Lock()
		defer w.mu.Unlock()
		if e.pos >= 0 {
			heap.Remove(h, e.pos)
			return ctx.Err()
		}
		return nil
	}
}

// waitHeap orders waiters by what they wait for; pos is -1 once removed.
type waitHeap []*waiter

func (h waitHeap) Len() int           { return len(h) }
func (h waitHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h waitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *waitHeap) Push(x any) {
	e := x.(*waiter)
	e.pos = len(*h)
	*h = append(*h, e)
}

func (h *waitHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	e.pos = -1
	return e
}
