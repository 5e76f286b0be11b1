package rt

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// script is a Behavior made of functions; nil ones do nothing.
type script[M any] struct {
	start  func(*Ctx[M]) error
	handle func(*Ctx[M], M) error
	stop   func(*Ctx[M], Reason)
}

func (s script[M]) Start(c *Ctx[M]) error {
	if s.start == nil {
		return nil
	}
	return s.start(c)
}

func (s script[M]) Handle(c *Ctx[M], m M) error {
	if s.handle == nil {
		return nil
	}
	return s.handle(c, m)
}

func (s script[M]) Stop(c *Ctx[M], r Reason) {
	if s.stop != nil {
		s.stop(c, r)
	}
}

// spec makes a Spec of s, the same for each incarnation.
func (s script[M]) spec(name string) Spec[M] {
	return Spec[M]{Name: name, Kind: name, New: func() Behavior[M] { return s }}
}

// journal collects lines from many goroutines.
type journal[T any] struct {
	mu    sync.Mutex
	lines []T
}

func (j *journal[T]) add(v T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, v)
}

func (j *journal[T]) all() []T {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]T(nil), j.lines...)
}

// logBuffer is a log that may be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *logBuffer) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: level}))
}

// bubble runs f with a system in a synctest bubble and shuts the system down.
func bubble(t *testing.T, o Options, f func(t *testing.T, s *System)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := NewSystem(o)
		f(t, s)
		shutdown(t, s)
	})
}

func shutdown(t *testing.T, s *System) {
	t.Helper()
	if err := s.Shutdown(soon(t)); err != nil {
		t.Errorf("shutdown: %v", err)
	}
}

// soon is a context with a deadline that no test should meet.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func mustSpawn[M any](t *testing.T, p Parent, spec Spec[M]) Ref[M] {
	t.Helper()
	ref, err := Spawn(p, spec)
	if err != nil {
		t.Fatalf("spawn %s: %v", spec.Name, err)
	}
	return ref
}

func mustGroup(t *testing.T, p Parent, name string, policy GroupPolicy) *Group {
	t.Helper()
	g, err := SpawnGroup(p, name, policy)
	if err != nil {
		t.Fatalf("spawn group %s: %v", name, err)
	}
	return g
}

func mustOffer[M any](t *testing.T, r Ref[M], msgs ...M) {
	t.Helper()
	for _, m := range msgs {
		if err := r.Offer(m); err != nil {
			t.Fatalf("offer %v to %s: %v", m, r.Name(), err)
		}
	}
}

func wantErr(t *testing.T, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got error %v, want %v", what, got, want)
	}
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}
