package rt

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

var stepperStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// onStepper makes a system that runs by hand.
func onStepper(t *testing.T) (*Stepper, *System) {
	t.Helper()
	s := NewStepper(stepperStart)
	sys := NewSystem(Options{Stepper: s})
	s.Settle()
	t.Cleanup(func() {
		sys.root.core.requestStop()
		s.Settle()
		if s.Waiting() != 0 {
			t.Errorf("%d workers still wait", s.Waiting())
		}
	})
	return s, sys
}

func TestStepperRunsNothingByItself(t *testing.T) {
	s, sys := onStepper(t)
	var got []string
	ref, err := Spawn(sys, script[string]{
		start: func(*Ctx[string]) error { got = append(got, "start"); return nil },
		handle: func(_ *Ctx[string], m string) error {
			got = append(got, m)
			return nil
		},
	}.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"x", "y"} {
		if err := ref.Offer(m); err != nil {
			t.Fatal(err)
		}
	}
	wantEqual(t, "before a step", len(got), 0)
	for i := 0; s.Runnable() > 0; i++ {
		before := len(got)
		s.Run(0)
		if len(got) > before+1 {
			t.Errorf("step %d handled %d messages", i, len(got)-before)
		}
	}
	wantLines(t, got, "start", "x", "y")
}

func TestStepperKeepsTime(t *testing.T) {
	s, sys := onStepper(t)
	var got []string
	ref, err := Spawn(sys, script[string]{
		start: func(c *Ctx[string]) error {
			c.After(2*time.Second, "later")
			c.After(time.Second, "sooner")
			c.After(time.Second, "never").Stop()
			return nil
		},
		handle: func(_ *Ctx[string], m string) error {
			got = append(got, m)
			return nil
		},
	}.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.RequestStop()
	s.Settle()
	at, ok := s.NextTimer()
	wantEqual(t, "first timer", at, time.Second)
	wantEqual(t, "there is one", ok, true)
	s.SetElapsed(999 * time.Millisecond)
	wantEqual(t, "too early", s.Runnable(), 0)
	s.SetElapsed(time.Minute)
	s.SetSkew(time.Hour)
	s.Settle()
	wantLines(t, got, "sooner", "later")
	wantEqual(t, "wall clock", sys.Now(), stepperStart.Add(time.Minute+time.Hour))
	wantEqual(t, "monotonic clock", sys.Elapsed(), time.Minute)
}

func TestStepperWorkersWaitAndAreWaitedFor(t *testing.T) {
	s, sys := onStepper(t)
	open, allowed := make(chan struct{}), false
	var got []string
	stopped := false
	ref, err := Spawn(sys, script[string]{
		start: func(c *Ctx[string]) error {
			c.Go("await", func(ctx context.Context) string {
				if err := Await(ctx, nil, open); err != nil {
					return err.Error()
				}
				return "opened"
			})
			c.Go("park", func(context.Context) string {
				s.Park(func() bool { return allowed })
				return "allowed"
			})
			c.Go("stop", func(ctx context.Context) string {
				if !errors.Is(Await(ctx, make(chan struct{}), nil), context.Canceled) {
					t.Error("a worker was not cancelled")
				}
				return "cancelled"
			})
			return nil
		},
		handle: func(_ *Ctx[string], m string) error { got = append(got, m); return nil },
		stop:   func(*Ctx[string], Reason) { stopped = true },
	}.spec("a"))
	if err != nil {
		t.Fatal(err)
	}
	s.Settle()
	wantEqual(t, "waiting", s.Waiting(), 3)
	close(open)
	s.Settle()
	allowed = true
	s.Settle()
	wantLines(t, got, "opened", "allowed")
	ref.RequestStop()
	s.Settle()
	wantEqual(t, "stopped", stopped, true)
	wantLines(t, got, "opened", "allowed")
}

func TestStepperRestartsAndQuarantines(t *testing.T) {
	s, sys := onStepper(t)
	group, err := SpawnGroup(sys, "g", GroupPolicy{})
	if err != nil {
		t.Fatal(err)
	}
	starts := 0
	spec := script[string]{
		start:  func(*Ctx[string]) error { starts++; return nil },
		handle: func(*Ctx[string], string) error { panic(errBoom) },
	}.spec("a")
	spec.Restart = RestartPolicy{Min: time.Second, Max: time.Second, Intensity: 1}
	ref, err := Spawn(group, spec)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ref.Offer("x"); err != nil {
			t.Fatal(err)
		}
		s.Settle()
		s.SetElapsed(s.Elapsed() + time.Second)
		s.Settle()
	}
	wantEqual(t, "starts", starts, 2)
	if err := ref.Err(); !errors.Is(err, ErrFailed) || !errors.Is(err, errBoom) {
		t.Errorf("given up with %v", err)
	}
	s.Reset()
	wantEqual(t, "elapsed after a reset", s.Elapsed(), 0)
}

func TestStepperRunsFunctionsOfTheSystem(t *testing.T) {
	s, sys := onStepper(t)
	open, done := make(chan struct{}), false
	sys.Go(func(ctx context.Context) {
		done = Await(ctx, open, nil) == nil
	})
	s.Settle()
	wantEqual(t, "done", done, false)
	close(open)
	s.Settle()
	wantEqual(t, "done", done, true)
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("handled %q, want %q", got, want)
	}
}
