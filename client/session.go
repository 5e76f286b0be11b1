package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// Product is how a session of trivet introduces itself.
const Product = "trivet"

// ContractVersion is the version of the published contract that a session
// speaks. The contract has managers refuse clients below 2.6.0, whatever their
// product, so this is what a session announces; the program's own version
// follows as semver build metadata.
const ContractVersion = "2.31.0"

// Reasons of the errors about sessions.
const (
	// ReasonSessionClosed: the session was closed by its owner.
	ReasonSessionClosed = "SESSION_CLOSED"
	// ReasonStreamEnded: the manager ended a stream of the session.
	ReasonStreamEnded = "STREAM_ENDED"
)

// Defaults of SessionOptions.
const (
	DefaultRemainEvery = 10 * time.Second
	DefaultMaxDials    = 256
	DefaultMaxQueued   = 1024
	DefaultMaxConns    = 4096
)

// SessionOptions describe a client session.
type SessionOptions struct {
	// Name is who connects, user@host; see UserName.
	Name string
	// InstallID is the id of the installation; see the function InstallID.
	InstallID string
	// Version is the program's version, for people to see.
	Version string
	// Namespace is the one that the session is connected to.
	Namespace string
	// RemainEvery is the period of the session's sign of life.
	RemainEvery time.Duration
	// MaxDials bounds the DialRequests that are worked on at the same time,
	// MaxQueued those that wait for that, MaxConns the open connections.
	MaxDials, MaxQueued, MaxConns int
	// Log receives what is too fine for events; nil drops it.
	Log *slog.Logger
}

func (o SessionOptions) withDefaults() SessionOptions {
	if o.RemainEvery == 0 {
		o.RemainEvery = DefaultRemainEvery
	}
	for _, d := range []struct {
		field *int
		value int
	}{{&o.MaxDials, DefaultMaxDials}, {&o.MaxQueued, DefaultMaxQueued}, {&o.MaxConns, DefaultMaxConns}} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func (o SessionOptions) info() *manager.ClientInfo {
	return &manager.ClientInfo{
		Name: o.Name, InstallId: o.InstallID, Product: Product, Version: announced(o.Version), Namespace: o.Namespace,
	}
}

// announced joins the contract's version and the program's.
func announced(version string) string {
	build := strings.Map(func(r rune) rune {
		switch {
		case r >= '0' && r <= '9', r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z', r == '-':
			return r
		}
		return '.'
	}, version)
	parts := slices.DeleteFunc(strings.Split(build, "."), func(s string) bool { return s == "" })
	return ContractVersion + "+" + strings.Join(append([]string{Product}, parts...), ".")
}

// Session is a client session with the manager. It reconnects by itself until
// it is closed.
type Session struct {
	pool   *Pool
	opts   SessionOptions
	api    managersvc.ManagerClient // through the pool
	events *eventQueue
	dials  *dials
	// connected: EventConnected was the last word on the connection.
	connected atomic.Bool

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu         sync.Mutex
	id         string                // guarded by mu
	earlier    []string              // ids it had before, the newest first; guarded by mu
	intercepts map[string]*Intercept // guarded by mu; by name
	closed     bool                  // guarded by mu
}

// OpenSession arrives as a client through pool, which must outlive the
// session. It returns when the manager has granted the session; streams are
// opened in the background, see EventConnected. The caller closes the session.
func OpenSession(ctx context.Context, pool *Pool, opts SessionOptions) (*Session, error) {
	s := &Session{
		pool:       pool,
		opts:       opts.withDefaults(),
		api:        managersvc.NewManagerClient(pool),
		events:     newEventQueue(),
		intercepts: map[string]*Intercept{},
	}
	if err := s.arrive(ctx); err != nil {
		return nil, err
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.dials = newDials(runCtx, s)
	s.wg.Go(func() { s.dials.run(runCtx) })
	s.wg.Go(func() { s.run(runCtx) })
	return s, nil
}

// ID returns the session's id; it changes when the manager forgets the session,
// and when it knows an earlier one again.
func (s *Session) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// Next returns the next event. It waits for one; after Close it returns the
// rest and then io.EOF.
func (s *Session) Next(ctx context.Context) (Event, error) { return s.events.next(ctx) }

// Stats returns what the session has counted so far.
func (s *Session) Stats() SessionStats {
	st := s.dials.stats()
	st.EventsDropped = s.events.droppedTotal()
	return st
}

// SessionStats counts what a session did. All values but Open only grow.
type SessionStats struct {
	// Open is the number of connections that are open now, Opened of all.
	Open   int64
	Opened uint64
	// Refused counts connections that the local process did not take, or that
	// exceeded MaxConns.
	Refused uint64
	// Foreign counts requests to dial what no intercept names.
	Foreign uint64
	// Malformed counts requests whose connection id is not valid.
	Malformed uint64
	// Duplicate counts requests for a connection that was being dialled.
	Duplicate uint64
	// Lost counts requests whose tunnel could not be opened.
	Lost uint64
	// BytesIn came from visitors, BytesOut went to them, of ended connections.
	BytesIn, BytesOut uint64
	// EventsDropped counts events that nobody took in time.
	EventsDropped uint64
}

// Close removes the session's intercepts, departs, ends the open connections
// and waits for the session's goroutines. ctx bounds the talk with the
// manager; if it ends first, the error says what was left undone and the
// manager will notice by itself.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	all := make([]*Intercept, 0, len(s.intercepts))
	for _, it := range s.intercepts {
		all = append(all, it)
	}
	s.mu.Unlock()
	var problems []error
	for _, it := range all {
		problems = append(problems, it.Close(ctx))
	}
	// Stopped first: the end of a session that departs is no reason to
	// reconnect.
	s.stop()
	s.wg.Wait()
	s.dials.wait()
	if _, err := s.api.Depart(ctx, s.info()); err != nil {
		problems = append(problems, fmt.Errorf("depart: %w", err))
	}
	s.events.close()
	return errors.Join(problems...)
}

func (s *Session) info() *manager.SessionInfo {
	install := s.opts.InstallID
	return &manager.SessionInfo{SessionId: s.ID(), InstallId: &install}
}

func (s *Session) emit(e Event) {
	e.Time = time.Now()
	s.events.put(e)
}

func (s *Session) arrive(ctx context.Context) error {
	info, err := s.api.ArriveAsClient(ctx, s.opts.info())
	if err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	if info.GetSessionId() == "" {
		return errs.New(codes.Internal, "NO_SESSION_ID", "open a session: the manager gave it no id")
	}
	s.become(info.GetSessionId())
	return nil
}

// maxEarlier is how many ids a session remembers that it had before.
const maxEarlier = 4

// become gives the session another id. The old one is remembered: a manager that
// has forgotten it may know it again when a snapshot is restored.
func (s *Session) become(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.earlier = slices.DeleteFunc(s.earlier, func(x string) bool { return x == id })
	if s.id != "" && s.id != id {
		s.earlier = slices.Insert(s.earlier, 0, s.id)
	}
	s.earlier = s.earlier[:min(len(s.earlier), maxEarlier)]
	s.id = id
}
