package rt

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// executor is what a System runs on: goroutines and the time package, or a
// Stepper.
type executor interface {
	// now is the wall clock.
	now() time.Time
	// elapsed is a monotonic clock from any origin.
	elapsed() time.Duration
	// after calls f once d has passed, unless it is stopped before.
	after(d time.Duration, f func()) stopper
	// spawn runs f where waiting is allowed.
	spawn(f func())
	// isolated runs f and returns when it has ended, in whatever way.
	isolated(f func())
	// jitter is a number in [0, 1).
	jitter() float64
	// bind adds to a context what Await needs to know.
	bind(context.Context) context.Context
	// dispatcher is where mailboxes loop; nil: the library's own.
	dispatcher(group bool) actor.Dispatcher
}

// stopper is a timer that has not fired yet.
type stopper interface{ Stop() bool }

// live is the executor of every process that serves somebody.
type live struct{ epoch time.Time }

func (live) now() time.Time                           { return time.Now() }
func (l live) elapsed() time.Duration                 { return time.Since(l.epoch) }
func (live) after(d time.Duration, f func()) stopper  { return time.AfterFunc(d, f) }
func (live) spawn(f func())                           { go f() }
func (live) jitter() float64                          { return rand.Float64() }
func (live) bind(ctx context.Context) context.Context { return ctx }
func (live) dispatcher(bool) actor.Dispatcher         { return nil }

func (live) isolated(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// Now is the wall clock of the system.
func (s *System) Now() time.Time { return s.exec.now() }

// Elapsed is the monotonic clock of the system, since some moment at or before
// its making.
func (s *System) Elapsed() time.Duration { return s.exec.elapsed() }

// Go runs f apart from all actors, where waiting is allowed, through Await
// only. Whoever calls Go sees to it that f ends, and waits for that; Shutdown
// does neither.
func (s *System) Go(f func(context.Context)) {
	ctx := s.exec.bind(context.Background())
	s.exec.spawn(func() { f(ctx) })
}

// Await waits until a or b is closed or ctx is done, and returns ctx's error in
// the last case. Either channel may be nil. Workers and functions given to
// System.Go wait with it rather than with a select of their own, so that they
// can also run on a Stepper.
func Await(ctx context.Context, a, b <-chan struct{}) error {
	if s, ok := ctx.Value(stepperKey{}).(*Stepper); ok {
		s.Park(func() bool { return isClosed(a) || isClosed(b) || ctx.Err() != nil })
		if isClosed(a) || isClosed(b) {
			return nil
		}
		return ctx.Err()
	}
	select {
	case <-a:
	case <-b:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
