package rt

import (
	"container/heap"
	"context"
	"iter"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// A Stepper runs the actors of a System by hand, one step at a time, in an
// order and at a time that its owner chooses: for simulations. Equal choices
// give equal runs. What the rest of this package promises holds with one
// exception, that workers must wait with Await or Park.
//
// A step is the handling of one message, the start or continuation of a worker
// until it waits or ends, or a timer that fires. Nothing runs outside of Run,
// except groups, which only pass things on, and what Spawn, Offer and the like
// do themselves.
//
// A Stepper and everything on it belong to one goroutine (workers are
// coroutines of it). It serves one System.
type Stepper struct {
	start time.Time
	past  time.Duration // since start
	skew  time.Duration

	ready  []func()
	timers timerHeap
	seq    uint64
	parked []*coroutine
	// current is the coroutine that runs, nil outside of any.
	current *coroutine
}

// NewStepper makes a stepper whose clock stands at start.
func NewStepper(start time.Time) *Stepper { return &Stepper{start: start} }

// Reset makes the stepper as it was when it was made. Its actors must have been
// stopped; it panics if a worker still waits.
func (s *Stepper) Reset() {
	if len(s.parked) > 0 {
		panic("rt: a stepper with workers that wait was reset")
	}
	*s = Stepper{start: s.start}
}

// coroutine is a worker that may wait.
type coroutine struct {
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	// ready says whether it can go on.
	ready func() bool
}

// Elapsed is the time since the start.
func (s *Stepper) Elapsed() time.Duration { return s.past }

// SetElapsed moves the clock; it never goes back. Timers that are due by then
// do not fire before they are run.
func (s *Stepper) SetElapsed(d time.Duration) { s.past = max(s.past, d) }

// SetSkew sets how far the wall clock is ahead of start plus Elapsed.
func (s *Stepper) SetSkew(d time.Duration) { s.skew = d }

// NextTimer is when the next timer is due; false if there is none.
func (s *Stepper) NextTimer() (time.Duration, bool) {
	for len(s.timers) > 0 && s.timers[0].f == nil {
		heap.Pop(&s.timers)
	}
	if len(s.timers) == 0 {
		return 0, false
	}
	return s.timers[0].at, true
}

// Runnable is the number of steps that could be taken now.
func (s *Stepper) Runnable() int {
	for {
		at, ok := s.NextTimer()
		if !ok || at > s.past {
			break
		}
		t := heap.Pop(&s.timers).(*stepTimer)
		s.ready = append(s.ready, t.fire)
	}
	kept := s.parked[:0]
	for _, c := range s.parked {
		if c.ready() {
			s.ready = append(s.ready, func() { s.resume(c) })
		} else {
			kept = append(kept, c)
		}
	}
	clear(s.parked[len(kept):])
	s.parked = kept
	return len(s.ready)
}

// Run takes the step with number i, from 0 to below what Runnable has just
// returned, in the order in which they became possible.
func (s *Stepper) Run(i int) {
	f := s.ready[i]
	n := copy(s.ready[i:], s.ready[i+1:])
	s.ready[i+n] = nil
	s.ready = s.ready[:i+n]
	f()
}

// Settle takes steps, the oldest first, until none is possible without time
// passing.
func (s *Stepper) Settle() {
	for s.Runnable() > 0 {
		s.Run(0)
	}
}

// Waiting is the number of workers that wait.
func (s *Stepper) Waiting() int { return len(s.parked) }

// Park lets the worker that calls it wait until ready returns true. ready is
// asked often, must be cheap and have no effect.
func (s *Stepper) Park(ready func() bool) {
	c := s.current
	if c == nil {
		panic("rt: something that is not a worker waits on a stepper")
	}
	if ready() {
		return
	}
	c.ready = ready
	c.yield(struct{}{})
}

func (s *Stepper) resume(c *coroutine) {
	before := s.current
	s.current = c
	_, more := c.next()
	s.current = before
	if more {
		s.parked = append(s.parked, c)
	}
}

func (s *Stepper) now() time.Time         { return s.start.Add(s.past + s.skew) }
func (s *Stepper) elapsed() time.Duration { return s.past }
func (s *Stepper) jitter() float64        { return 0.5 }
func (s *Stepper) isolated(f func())      { f() }

func (s *Stepper) spawn(f func()) {
	s.ready = append(s.ready, func() {
		c := &coroutine{}
		c.next, _ = iter.Pull(func(yield func(struct{}) bool) {
			c.yield = yield
			f()
		})
		s.resume(c)
	})
}

func (s *Stepper) after(d time.Duration, f func()) stopper {
	s.seq++
	t := &stepTimer{at: s.past + max(d, 0), seq: s.seq, f: f}
	heap.Push(&s.timers, t)
	return t
}

// stepperKey marks the contexts of workers that run on a stepper.
type stepperKey struct{}

func (s *Stepper) bind(ctx context.Context) context.Context {
	return context.WithValue(ctx, stepperKey{}, s)
}

// dispatcher lets groups run where they are called, because whoever spawns
// below one waits for it, and everything else step by step.
func (s *Stepper) dispatcher(group bool) actor.Dispatcher {
	if group {
		return actor.NewSynchronizedDispatcher(groupThroughput)
	}
	return stepDispatcher{s}
}

// groupThroughput is how much a group passes on in one go; all of it, for it
// goes on until nothing is left.
const groupThroughput = 300

// stepDispatcher makes each message of a mailbox a step.
type stepDispatcher struct{ s *Stepper }

func (d stepDispatcher) Schedule(f func()) { d.s.ready = append(d.s.ready, f) }
func (stepDispatcher) Throughput() int     { return 1 }

// stepTimer is a timer; f is nil once it has fired or was stopped.
type stepTimer struct {
	at  time.Duration
	seq uint64
	f   func()
}

// Stop implements stopper.
func (t *stepTimer) Stop() bool {
	armed := t.f != nil
	t.f = nil
	return armed
}

func (t *stepTimer) fire() {
	if f := t.f; f != nil {
		t.f = nil
		f()
	}
}

// timerHeap has the timer that is due first in front; of equal ones that which
// was set first.
type timerHeap []*stepTimer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h timerHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timerHeap) Push(x any)   { *h = append(*h, x.(*stepTimer)) }
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return t
}
