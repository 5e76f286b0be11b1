package actors

import (
	"testing"
	"time"
)

func TestClockLeavesPausesOut(t *testing.T) {
	c := newClock(5*time.Second, elapsedSince(time.Now()))
	steps := []struct {
		name    string
		raw     time.Duration
		tick    bool
		paused  time.Duration
		reading time.Duration // leader time after the step, at the same moment
	}{
		{"start", 0, false, 0, 0},
		{"runs between ticks", 900 * time.Millisecond, false, 0, 900 * time.Millisecond},
		{"first tick", time.Second, true, 0, time.Second},
		{"late tick within the gap", 6 * time.Second, true, 0, 6 * time.Second},
		{"still running at the gap", 11 * time.Second, false, 0, 11 * time.Second},
		{"stands beyond it", 11*time.Second + 1, false, 0, 6 * time.Second},
		{"stands for however long", time.Hour, false, 0, 6 * time.Second},
		{"the tick accounts for the pause", time.Hour, true, time.Hour - 6*time.Second, 6 * time.Second},
		{"runs again from where it stood", time.Hour + 2*time.Second, false, 0, 8 * time.Second},
		{"a reading before the last tick", time.Hour - time.Second, true, 0, 5 * time.Second},
		{"second pause adds up", 2 * time.Hour, true, time.Hour, 6 * time.Second},
	}
	for _, s := range steps {
		if s.tick {
			if got := c.tickAt(s.raw); got != s.paused {
				t.Errorf("%s: pause of %v, want %v", s.name, got, s.paused)
			}
		}
		if got := time.Duration(c.at(s.raw)); got != s.reading {
			t.Errorf("%s: leader time %v, want %v", s.name, got, s.reading)
		}
	}
}

// skip lets the monotonic clock go on by d while nobody runs, as it does when
// the process is stopped: leader time keeps its reading against a clock that
// is d further on.
func (c *clock) skip(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last -= d
	c.paused -= d
}

// elapsedSince is the monotonic clock of a test.
func elapsedSince(t time.Time) func() time.Duration {
	return func() time.Duration { return time.Since(t) }
}
