package sim

import (
	"container/heap"
	"time"
)

// event is something that the model does at a time.
type event struct {
	at  time.Duration
	seq uint64
	// server is where it happens and boot the life of that server that it is
	// for; nobody's if server is nil.
	server *server
	boot   int
	// peer says that it comes from a client or an agent.
	peer bool
	do   func()
}

// agenda is the events to come and those that are due.
type agenda struct {
	heap eventHeap
	due  []*event
	seq  uint64
}

func (a *agenda) add(e *event) {
	a.seq++
	e.seq = a.seq
	heap.Push(&a.heap, e)
}

// collect moves what is due by now to due. What is for a server that does not
// live any more is dropped, and what is for one that stands still waits there.
func (a *agenda) collect(now time.Duration) {
	for len(a.heap) > 0 && a.heap[0].at <= now {
		e := heap.Pop(&a.heap).(*event)
		switch s := e.server; {
		case s == nil:
		case !s.lives(e.boot):
			continue
		case s.paused:
			s.waiting = append(s.waiting, e)
			continue
		}
		a.due = append(a.due, e)
	}
}

// take takes the i-th of those that are due; nil if its server has died or
// stands still since.
func (a *agenda) take(i int) *event {
	e := a.due[i]
	n := copy(a.due[i:], a.due[i+1:])
	a.due[i+n] = nil
	a.due = a.due[:i+n]
	if s := e.server; s != nil {
		if !s.lives(e.boot) {
			return nil
		}
		if s.paused {
			s.waiting = append(s.waiting, e)
			return nil
		}
	}
	return e
}

// next is when the first event comes that is not due yet.
func (a *agenda) next() (time.Duration, bool) {
	if len(a.heap) == 0 {
		return 0, false
	}
	return a.heap[0].at, true
}

type eventHeap []*event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(x any)   { *h = append(*h, x.(*event)) }
func (h *eventHeap) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
