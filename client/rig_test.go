package client

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/client/clienttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// contextOf is a context for a client of f.
func contextOf(f *clienttest.Manager) Context {
	return Context{Name: "test", Servers: f.Addresses(), Bundle: f.Bundle, Namespace: "shop"}
}

// fast are options under which a hung server is noticed soon.
func fast() Options {
	return Options{PingAfter: 50 * time.Millisecond, PingTimeout: time.Second, AttemptTimeout: 5 * time.Second}
}

func dialFake(t *testing.T, f *clienttest.Manager, opts Options) *Pool {
	t.Helper()
	p, err := Dial(t.Context(), contextOf(f), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func openSession(t *testing.T, p *Pool, change ...func(*SessionOptions)) *Session {
	t.Helper()
	opts := SessionOptions{Name: "alice@laptop", InstallID: "install", Version: "1.0.0", Namespace: "shop"}
	for _, c := range change {
		c(&opts)
	}
	s, err := OpenSession(t.Context(), p, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Close(ctx) // the manager may be dead by now
	})
	return s
}

// await returns the next event of that kind, and fails the test if none comes.
func await(t *testing.T, s *Session, kind EventKind) Event {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var seen []string
	for {
		e, err := s.Next(ctx)
		if err != nil {
			t.Fatalf("no event %q came, only %q: %v", kind, seen, err)
		}
		if e.Kind == kind {
			return e
		}
		seen = append(seen, string(e.Kind)+" "+e.Message)
	}
}

// receive takes a value from c, and fails the test when none comes.
func receive[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("waited in vain for %s", what)
		panic("not reached")
	}
}
