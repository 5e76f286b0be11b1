package chaos

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWritesAreAwaitedByTheirCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWrites()
		type result struct {
			first int64
			ok    bool
		}
		got := make(chan result)
		go func() {
			first, ok := w.await(t.Context(), 100, 2, time.Minute)
			got <- result{first, ok}
		}()
		synctest.Wait()
		w.note(99, 150) // called before
		w.note(100, 160)
		w.note(110, 170)
		if r := <-got; r.first != 160 || !r.ok {
			t.Errorf("%+v, want the first at 160", r)
		}
		if first, ok := w.await(t.Context(), 100, 1, time.Minute); first != 0 || ok {
			t.Errorf("nothing came and it is %d, %v", first, ok)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, ok := w.await(ctx, 0, 1, time.Minute); ok {
			t.Error("it waited for nothing with an ended context")
		}
	})
}

func TestTheLongestTimeWithoutAWrite(t *testing.T) {
	w := newWrites()
	for _, at := range []int64{1000, 1010, 1500, 1490, 1600} {
		w.note(0, at)
	}
	if longest, at := w.gap(); longest != 490 || at != 1500 {
		t.Errorf("%d until %d, want 490 until 1500", longest, at)
	}
}
