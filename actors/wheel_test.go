package actors

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWheelHandsOutAfterTheDeadlineOnly(t *testing.T) {
	w := &wheel{grain: time.Second}
	s := &session{}
	w.schedule(s, instant(10*time.Second))
	for _, step := range []struct {
		now  time.Duration
		want int
	}{
		{10 * time.Second, 0},
		{11*time.Second - 1, 0},
		{11 * time.Second, 1},
		{12 * time.Second, 0},
	} {
		if got := len(w.advance(instant(step.now), nil)); got != step.want {
			t.Errorf("at %v: %d sessions due, want %d", step.now, got, step.want)
		}
	}
}

func TestWheelEarlierLookReplacesLater(t *testing.T) {
	w := &wheel{grain: time.Second}
	s := &session{}
	w.schedule(s, instant(60*time.Second))
	w.schedule(s, instant(5*time.Second))
	w.schedule(s, instant(90*time.Second)) // later than the look that is due
	if got := len(w.advance(instant(6*time.Second), nil)); got != 1 {
		t.Fatalf("due after the earlier deadline: %d, want 1", got)
	}
	if got := len(w.advance(instant(100*time.Second), nil)); got != 0 {
		t.Errorf("stale entries handed out: %d", got)
	}
}

// TestWheelNeverLosesASession lets deadlines move and time jump at random; a
// session that is scheduled again whenever it is handed out is handed out
// within a tick of its deadline, or within a round when it lies far ahead.
func TestWheelNeverLosesASession(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &wheel{grain: time.Second}
		s := &session{}
		now := instant(0)
		deadline := instant(rapid.Int64Range(0, int64(400*time.Second)).Draw(t, "deadline"))
		w.schedule(s, deadline)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "move") {
				deadline = now + instant(rapid.Int64Range(0, int64(400*time.Second)).Draw(t, "ahead"))
				w.schedule(s, deadline)
			}
			now += instant(rapid.Int64Range(0, int64(200*time.Second)).Draw(t, "pass"))
			due := w.advance(now, nil)
			if len(due) > 1 {
				t.Fatalf("one session handed out %d times", len(due))
			}
			if len(due) == 0 && now >= deadline.add(w.grain) {
				t.Fatalf("at %v nothing was due although the deadline was %v", now, deadline)
			}
			if len(due) == 1 {
				if now > deadline {
					deadline = now + instant(rapid.Int64Range(0, int64(400*time.Second)).Draw(t, "next"))
				}
				w.schedule(s, deadline)
			}
		}
	})
}
