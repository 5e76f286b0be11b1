package logstore

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// guarded calls do and makes an error of a panic, and of a memory fault: a
// mapped file that lost its end, or a disk that cannot read a page.
func guarded(do func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			err = panicked{p}
		}
	}()
	return do()
}

// deadlineParts is how many parts a deadline is counted in. A part that took longer
// than it should because this process was stopped counts as one.
const deadlineParts = 10

// pending is a write that is under way.
type pending struct {
	start time.Time

	mu    sync.Mutex
	left  int         // parts of the deadline; guarded by mu
	done  bool        // guarded by mu
	timer *time.Timer // guarded by mu
}

// begin notes that a write begins. If it does not end before the deadline the
// store fails.
func (s *Store) begin() *pending {
	p := &pending{start: time.Now(), left: deadlineParts}
	slice := s.cfg.Deadline / deadlineParts
	p.mu.Lock()
	p.timer = time.AfterFunc(slice, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.done {
			return
		}
		if p.left--; p.left > 0 {
			p.timer.Reset(slice)
			return
		}
		s.fail(errs.New(codes.Unavailable, ReasonDiskHung,
			"a write to the log in %s has not ended within %s", s.cfg.Dir, s.cfg.Deadline).
			WithHint("the disk under %s does not answer: look for its errors in the kernel's log; this server ended because the write may still land",
				s.cfg.Dir))
	})
	p.mu.Unlock()
	s.mu.Lock()
	s.underWay[p] = struct{}{}
	s.mu.Unlock()
	return p
}

// end notes that a write has ended and says how long it took.
func (s *Store) end(p *pending) time.Duration {
	p.mu.Lock()
	p.done = true
	p.timer.Stop()
	p.mu.Unlock()
	s.mu.Lock()
	delete(s.underWay, p)
	s.mu.Unlock()
	return time.Since(p.start)
}

// oldest is since when the oldest write is under way; the zero time: none is.
func (s *Store) oldest() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	var t time.Time
	for p := range s.underWay {
		if t.IsZero() || p.start.Before(t) {
			t = p.start
		}
	}
	return t
}

// fail makes err the reason for which nothing is written or read any more; the
// first one counts.
func (s *Store) fail(err error) {
	s.mu.Lock()
	first := s.failure == nil
	if first {
		s.failure = err
	}
	tell := s.onFatal
	if s.mode != serving {
		tell = nil
	}
	s.mu.Unlock()
	if first && tell != nil {
		tell(err)
	}
}

// failed is the error of fail, if there was one.
func (s *Store) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// leave ends an operation that Raft must not survive. Raft answers most errors
// of its stores with a panic, or with going on; so while it is served its
// goroutine ends here, and what it deferred runs. Otherwise err is returned.
func (s *Store) leave(err error) error {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	if mode != alone {
		runtime.Goexit()
	}
	return err
}

// Modes of a store.
type mode int

const (
	alone    mode = iota // errors are returned
	starting             // Raft is being made
	serving              // Raft runs
)

// Serve calls start, which gives the store to Raft. From then on an error that
// Raft must not see ends Raft's goroutine instead and is told to onFatal, once,
// which must not wait. When such an error comes up in start itself, or when
// Raft panics there, Serve returns it. Serve is called once, start runs on a
// goroutine of its own.
func (s *Store) Serve(onFatal func(error), start func() error) error {
	s.mu.Lock()
	s.mode, s.onFatal = starting, onFatal
	s.mu.Unlock()
	// What is read here stays if start does not come to its end.
	var err error
	returned := false
	var wg sync.WaitGroup
	wg.Go(func() {
		err = guarded(start)
		returned = true
	})
	wg.Wait()
	s.mu.Lock()
	failure := s.failure
	s.mode = serving
	s.mu.Unlock()
	switch p, isPanic := err.(panicked); {
	case !returned:
		return failure
	case isPanic && failure == nil:
		return corrupt(s.backend.file(), "the log", p)
	case err == nil && failure != nil:
		// Raft's own goroutines met it, and ended.
		onFatal(failure)
	}
	return err
}
