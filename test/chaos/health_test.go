package chaos

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trivet/internal/spawn"
	"trivet/internal/tunfwd"
)

// TestPollTellsWhatWasWrong: the look that the end of the context cuts short
// must not hide what the looks before it found.
func TestPollTellsWhatWasWrong(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	err := poll(ctx, "not whole", func(ctx context.Context) error {
		if looks++; looks == 1 {
			return errors.New("server-3 does not run")
		}
		cancel()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "server-3 does not run") {
		t.Errorf("%v", err)
	}
}

// TestAServerThatGivesUpLateIsStarted: a server that gave up on its hung disk
// ends a while after the fault is over (found by a run with seed
// 18072719607946664731); it must be started then, but only once.
func TestAServerThatGivesUpLateIsStarted(t *testing.T) {
	spawner := spawn.New()
	defer spawner.Close()
	s := &Server{
		Name: "server-1", Host: &tunfwd.Host{}, Log: filepath.Join(t.TempDir(), "log"),
		spawn: spawner, exe: "sleep", args: []string{"600"},
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	x := &execution{ending: s}
	if err := x.startIfEnded(ctx); err != nil || len(x.evidence) != 0 {
		t.Fatalf("it still runs: %v, %v", err, x.evidence)
	}
	for _, again := range []bool{true, false} {
		if err := s.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if err := x.startIfEnded(ctx); err != nil || s.Running() != again {
			t.Fatalf("started again: %t, want %t; %v, %v", s.Running(), again, err, x.evidence)
		}
	}
}
