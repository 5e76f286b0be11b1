package heart_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"trivet/node/heart"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// beating runs a heart and counts its beats.
func beating(t *testing.T) (*heart.Heart, *atomic.Int64) {
	t.Helper()
	h := heart.New(slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	var beats atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx, func() error {
			if beats.Add(1) == 2 {
				return errors.New("one beat that could not be written")
			}
			return nil
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return h, &beats
}

// during counts the beats of a time span.
func during(beats *atomic.Int64, d time.Duration) int64 {
	before := beats.Load()
	time.Sleep(d)
	synctest.Wait()
	return beats.Load() - before
}

func TestHeartBeatsWithoutLoops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, beats := beating(t)
		if got := during(beats, time.Second); got < 19 {
			t.Errorf("%d beats in a second", got)
		}
	})
}

func TestStuckLoopStopsTheHeart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, beats := beating(t)
		l := h.Loop("pod")
		other := h.Loop("other pod")
		other.Waiting()
		for range 10 { // a loop that comes round
			l.Alive()
			if got := during(beats, heart.Round); got == 0 {
				t.Fatal("the heart does not beat for a loop that lives")
			}
		}
		time.Sleep(heart.Limit) // and now one that does not
		synctest.Wait()
		if got := during(beats, time.Second); got != 0 {
			t.Errorf("%d beats while a loop is stuck", got)
		}
		l.Alive()
		if got := during(beats, heart.Limit); got == 0 {
			t.Error("the heart does not beat again")
		}
		time.Sleep(time.Second)
		l.End()
		synctest.Wait()
		if got := during(beats, time.Second); got < 19 {
			t.Errorf("%d beats in the second after the stuck loop is gone", got)
		}
		other.Alive() // it is back from its wait, and is watched again
		time.Sleep(2 * heart.Limit)
		synctest.Wait()
		if got := during(beats, time.Second); got != 0 {
			t.Errorf("%d beats while the other loop is stuck", got)
		}
	})
}
