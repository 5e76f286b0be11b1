package rt

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// Options configure a System.
type Options struct {
	// Name is an attribute of each log record, "system"; may be empty.
	Name string
	// Logger gets what the runtime has to say; nil discards it.
	Logger *slog.Logger
	// OnEscalate is called when a failure reaches the root: an actor below
	// the System itself that escalates, a group there that cannot cope, or
	// too many quarantined children of the root. Child is the name of the
	// root's child it came through. Calls come one at a time, on a goroutine
	// that exists only for them, so the function may take its time and may
	// call anything of this package, Shutdown included (which therefore does
	// not wait for it). While a call runs, further escalations through the
	// same child are merged into one. Nil logs only.
	OnEscalate func(child string, reason error)
	// Stepper runs the actors by hand; nil is for everything but simulations.
	Stepper *Stepper
}

// System is one tree of actors under one root supervisor.
type System struct {
	library *actor.ActorSystem
	logger  *slog.Logger
	exec    executor
	root    *Group

	mu    sync.Mutex
	kinds map[string]*counters // guarded by mu

	onEscalate func(child string, reason error)
	escMu      sync.Mutex
	pending    []escalation // guarded by escMu; at most one for each child's name
	escalating bool         // guarded by escMu; a goroutine is in runEscalations
	closing    bool         // guarded by escMu; no further call is wanted

	shutdown sync.Once
}

type escalation struct {
	child  string
	reason error
}

// NewSystem makes a system; it costs about 3 MB and 10 ms, so a process has
// few. It panics if the root cannot be started, which no input can cause.
func NewSystem(o Options) *System {
	logger := o.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if o.Name != "" {
		logger = logger.With("system", o.Name)
	}
	s := &System{logger: logger, exec: live{time.Now()}, onEscalate: o.OnEscalate, kinds: map[string]*counters{}}
	if o.Stepper != nil {
		s.exec = o.Stepper
	}
	s.library = actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(libraryHandler{logger.Handler()})
		}),
	)
	// The library's own subscriber starts a goroutine that lasts a second for a
	// dead letter, which nobody waits for. It has nothing to tell: messages of
	// ours cannot become dead letters, and a Stop does when a child ends by
	// itself while its parent stops.
	s.library.EventStream = zero(s.library.EventStream)
	s.root = newGroup(s, nil, "root", GroupPolicy{})
	s.root.core.kind.live.Add(1)
	if _, err := s.library.Root.SpawnNamed(s.root.core.props(), "root"); err != nil {
		panic(fmt.Sprintf("rt: spawn root of a new actor system: %v", err))
	}
	return s
}

// zero makes a T without naming it, for a type of a package not imported here.
func zero[T any](*T) *T { return new(T) }

// Shutdown stops the whole tree, children before parents, and waits for all
// actors and their workers. Spawn returns ErrStopped from now on, and
// OnEscalate is not called any more. If ctx ends first, Shutdown returns its
// error and the tree goes on stopping. It may be called more than once.
func (s *System) Shutdown(ctx context.Context) error {
	s.escMu.Lock()
	s.closing = true
	s.pending = nil
	s.escMu.Unlock()
	s.root.core.requestStop()
	if err := s.root.core.wait(ctx); err != nil {
		return fmt.Errorf("shut down actors, %d still there: %w", s.live(), ctx.Err())
	}
	s.shutdown.Do(s.library.Shutdown)
	return nil
}

// Stats returns the counters.
func (s *System) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Kinds: make(map[string]KindStats, len(s.kinds))}
	for kind, c := range s.kinds {
		st.Kinds[kind] = c.snapshot()
	}
	return st
}

func (s *System) live() (n int64) {
	for _, k := range s.Stats().Kinds {
		n += k.Live
	}
	return n
}

func (s *System) counters(kind string) *counters {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.kinds[kind]
	if c == nil {
		c = &counters{epoch: time.Now()}
		s.kinds[kind] = c
	}
	return c
}

func (s *System) node() *core { return s.root.core }

func (s *System) adopt(child *core) error { return s.root.core.adopt(child) }

// escalated reports a failure that no group contained.
func (s *System) escalated(child string, reason error) {
	s.logger.Error("failure reached the root", append(failureAttrs(reason), "child", child)...)
	if s.onEscalate == nil {
		return
	}
	s.escMu.Lock()
	defer s.escMu.Unlock()
	same := func(e escalation) bool { return e.child == child }
	if s.closing || slices.ContainsFunc(s.pending, same) {
		return
	}
	s.pending = append(s.pending, escalation{child, reason})
	if !s.escalating {
		s.escalating = true
		s.exec.spawn(s.runEscalations)
	}
}

// runEscalations calls OnEscalate until nothing is pending.
func (s *System) runEscalations() {
	for {
		s.escMu.Lock()
		if len(s.pending) == 0 {
			s.escalating = false
			s.escMu.Unlock()
			return
		}
		e := s.pending[0]
		s.pending = slices.Delete(s.pending, 0, 1)
		s.escMu.Unlock()
		s.onEscalate(e.child, e.reason)
	}
}

// libraryHandler passes the library's log records on. What it calls
// information is of interest for debugging only: we log failures ourselves.
type libraryHandler struct{ slog.Handler }

func (h libraryHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, libraryLevel(l))
}

func (h libraryHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = libraryLevel(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h libraryHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return libraryHandler{h.Handler.WithAttrs(attrs)}
}

func (h libraryHandler) WithGroup(name string) slog.Handler {
	return libraryHandler{h.Handler.WithGroup(name)}
}

func libraryLevel(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}
