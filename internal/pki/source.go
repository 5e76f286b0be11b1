package pki

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Source is where TLS configurations get the bundle of the moment from. Its
// identity never changes; certificate, key and root may.
type Source struct {
	dir string // empty: not on disk
	now func() time.Time

	mu  sync.Mutex // serialises swaps; readers use cur alone
	cur atomic.Pointer[Bundle]
}

// SourceOption changes a Source.
type SourceOption func(*Source)

// WithClock makes a Source, and all configurations made from it, ask now
// instead of time.Now.
func WithClock(now func() time.Time) SourceOption {
	return func(s *Source) { s.now = now }
}

// OpenSource loads the bundle in dir. The dates are not checked: whoever
// starts a listener asks Bundle().ValidAt first, whoever renews must be able
// to open an expired bundle.
func OpenSource(dir string, opts ...SourceOption) (*Source, error) {
	b, err := LoadBundle(dir)
	if err != nil {
		return nil, err
	}
	s := NewSource(b, opts...)
	s.dir = dir
	return s, nil
}

// NewSource returns a source of b that has no files; change it with Set.
func NewSource(b *Bundle, opts ...SourceOption) *Source {
	s := &Source{now: time.Now}
	for _, o := range opts {
		o(s)
	}
	s.cur.Store(b)
	return s
}

// Bundle returns the bundle of the moment. Hold it for one handshake, not for
// longer.
func (s *Source) Bundle() *Bundle { return s.cur.Load() }

// Dir returns the directory of the bundle, or "" when it has none.
func (s *Source) Dir() string { return s.dir }

// Reload reads the bundle from disk again. On any error the old one stays:
// files that do not verify, another identity, or dates that do not hold now.
func (s *Source) Reload() error {
	if s.dir == "" {
		return fmt.Errorf("reload bundle of %s: it was not loaded from a directory", s.Bundle().ID)
	}
	b, err := LoadBundle(s.dir)
	if err != nil {
		return fmt.Errorf("reload bundle: %w", err)
	}
	return s.Set(b)
}

// Set swaps the bundle under the conditions of Reload. It does not write
// files.
func (s *Source) Set(b *Bundle) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.Bundle().ID; b.ID != old {
		return errs.New(codes.FailedPrecondition, ReasonInvalid,
			"replace bundle: the new one is for %s, this process runs as %s", b.ID, old).
			WithHint("an identity changes only with a restart")
	}
	if err := b.ValidAt(s.now()); err != nil {
		return fmt.Errorf("replace bundle: %w", err)
	}
	s.cur.Store(b)
	return nil
}

// Now is the time by the clock of the source.
func (s *Source) Now() time.Time { return s.now() }
