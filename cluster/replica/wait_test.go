package replica

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

func TestWaitersWakeWhenTheirPointIsPassed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waitList
		const n = 200
		var woken [n + 1]atomic.Bool
		order := rand.New(rand.NewPCG(1, 2)).Perm(n)
		for _, i := range order {
			at := uint64(i + 1)
			go func() {
				if err := w.waitRevision(t.Context(), at); err != nil {
					t.Errorf("wait for %d: %v", at, err)
				}
				woken[at].Store(true)
			}()
		}
		synctest.Wait()
		for rev := uint64(0); rev <= n; rev += 7 {
			w.advance(rev, 0)
			synctest.Wait()
			for at := uint64(1); at <= n; at++ {
				if woken[at].Load() != (at <= rev) {
					t.Fatalf("at revision %d the waiter for %d is woken: %v", rev, at, woken[at].Load())
				}
			}
		}
		w.advance(n, 0)
		synctest.Wait()
		if err := w.waitRevision(t.Context(), n); err != nil {
			t.Errorf("a point that is passed already: %v", err)
		}
		if len(w.byRev) != 0 {
			t.Errorf("%d waiters are left", len(w.byRev))
		}
	})
}

func TestWaitersForRevisionAndIndexAreApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waitList
		var rev, index atomic.Bool
		go func() { rev.Store(w.waitRevision(t.Context(), 10) == nil) }()
		go func() { index.Store(w.waitIndex(t.Context(), 20) == nil) }()
		synctest.Wait()
		w.advance(10, 5)
		synctest.Wait()
		if !rev.Load() || index.Load() {
			t.Errorf("at revision 10, index 5: revision woken %v, index woken %v", rev.Load(), index.Load())
		}
		w.advance(11, 20)
		synctest.Wait()
		if !index.Load() {
			t.Error("at index 20 its waiter sleeps")
		}
	})
}

func TestCanceledWaitersLeaveTheHeap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w waitList
		stay := make(chan error, 1)
		go func() { stay <- w.waitRevision(t.Context(), 50) }()
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 99)
		for i := range 99 {
			go func() { gone <- w.waitRevision(ctx, uint64(i+1)) }()
		}
		synctest.Wait()
		cancel()
		for range 99 {
			if err := <-gone; !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled wait ends with %v", err)
			}
		}
		if len(w.byRev) != 1 {
			t.Errorf("%d waiters are left, want 1", len(w.byRev))
		}
		w.advance(50, 0)
		if err := <-stay; err != nil {
			t.Errorf("the one that stayed: %v", err)
		}
	})
}

func TestAWaitThatIsOverWinsOverItsContext(t *testing.T) {
	var w waitList
	w.advance(3, 3)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.waitRevision(ctx, 3); err != nil {
		t.Errorf("got %v, want nil: there is nothing to wait for", err)
	}
}
