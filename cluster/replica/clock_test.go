package replica

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestStampClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(stampClock)
		if got, want := c.now(), time.Now().UnixNano(); got != want {
			t.Errorf("before the first term: %d, want the wall clock %d", got, want)
		}
		begin := time.Now().UnixNano()
		// The last leader's clock was an hour ahead.
		c.start(begin + int64(time.Hour))
		if got, want := c.now(), begin+int64(time.Hour); got != want {
			t.Errorf("after a start behind the last stamp: %d, want to go on from it, %d", got, want)
		}
		time.Sleep(time.Second)
		if got, want := c.now(), begin+int64(time.Hour+time.Second); got != want {
			t.Errorf("a second later: %d, want %d", got, want)
		}
		// The next term does not take it back, although its state is older.
		c.start(begin)
		if got, want := c.now(), begin+int64(time.Hour+time.Second); got != want {
			t.Errorf("at the start of the next term: %d, want %d", got, want)
		}
		// Entries of earlier terms turn out to be later still.
		c.raise(begin)
		if got, want := c.now(), begin+int64(time.Hour+time.Second); got != want {
			t.Errorf("raised to a time that is past: %d, want %d", got, want)
		}
		c.raise(begin + int64(2*time.Hour))
		time.Sleep(time.Minute)
		if got, want := c.now(), begin+int64(2*time.Hour+time.Minute); got != want {
			t.Errorf("a minute after it was raised: %d, want %d", got, want)
		}
	})
}

func TestStampClockFollowsTheWallClockBetweenTerms(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := new(stampClock)
		c.start(0)
		time.Sleep(time.Hour)
		c.start(0)
		if got, want := c.now(), time.Now().UnixNano(); got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	})
}
