package rt

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// gated is an actor that handles one message for each value sent on gate.
func gated(t *testing.T, s *System, capacity int) (
	ref Ref[int], gate chan struct{}, handled, lost *journal[int],
) {
	t.Helper()
	gate = make(chan struct{})
	handled, lost = &journal[int]{}, &journal[int]{}
	spec := script[int]{handle: func(_ *Ctx[int], m int) error {
		<-gate
		handled.add(m)
		return nil
	}}.spec("gated")
	spec.Capacity = capacity
	spec.Lost = lost.add
	return mustSpawn(t, s, spec), gate, handled, lost
}

func TestOfferRefusesWhenFull(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, handled, _ := gated(t, s, 8)
		mustOffer(t, ref, 0)
		synctest.Wait() // it is in Handle now and takes no room
		full := 0
		for i := 1; i <= 20; i++ {
			if err := ref.Offer(i); err != nil {
				wantErr(t, "offer", err, ErrFull)
				full++
			}
		}
		wantEqual(t, "refused", full, 12)
		close(gate)
		synctest.Wait()
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		stats := s.Stats().Kinds["gated"]
		wantEqual(t, "Full", stats.Full, 12)
		wantEqual(t, "Depth", stats.Depth, 8)
	})
}

func TestStopLosesAndCountsWhatIsQueued(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, handled, lost := gated(t, s, 8)
		mustOffer(t, ref, 0, 1, 2, 3, 4, 5)
		synctest.Wait()
		ref.RequestStop()
		wantErr(t, "offer after the request", ref.Offer(6), ErrStopped)
		wantErr(t, "push after the request", ref.Push(soon(t), 6), ErrStopped)
		wantEqual(t, "Err while it stops", ref.Err(), nil)
		close(gate)
		if err := ref.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Err", ref.Err(), ErrStopped)
		wantErr(t, "offer after the stop", ref.Offer(7), ErrStopped)
		if diff := cmp.Diff([]int{0}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]int{1, 2, 3, 4, 5}, lost.all()); diff != "" {
			t.Errorf("lost (-want +got):\n%s", diff)
		}
		wantEqual(t, "Lost", s.Stats().Kinds["gated"].Lost, 5)
		wantEqual(t, "second stop", ref.Stop(soon(t)), nil)
	})
}

func TestDrainHandlesWhatIsQueued(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, handled, lost := gated(t, s, 4)
		mustOffer(t, ref, 0)
		synctest.Wait()
		mustOffer(t, ref, 1, 2, 3, 4) // full: the request needs no room
		drained := make(chan error, 1)
		go func() { drained <- ref.Drain(soon(t)) }()
		synctest.Wait()
		wantErr(t, "offer while it drains", ref.Offer(5), ErrStopped)
		close(gate)
		wantEqual(t, "drain", <-drained, nil)
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		wantEqual(t, "lost", len(lost.all()), 0)
	})
}

func TestDrainGoesOnAfterRestart(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var handled journal[int]
		release := make(chan struct{})
		ref := mustSpawn(t, s, script[int]{handle: func(_ *Ctx[int], m int) error {
			<-release
			handled.add(m)
			if m == 1 {
				return errBoom
			}
			return nil
		}}.spec("a"))
		mustOffer(t, ref, 1, 2, 3)
		go close(release)
		wantEqual(t, "drain", ref.Drain(soon(t)), nil)
		if diff := cmp.Diff([]int{1, 2, 3}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestPushWaitsForRoomInOrder(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, handled, _ := gated(t, s, 1)
		mustOffer(t, ref, 0)
		synctest.Wait()
		mustOffer(t, ref, 1)
		var wg sync.WaitGroup
		for i := 2; i <= 4; i++ {
			wg.Go(func() {
				if err := ref.Push(soon(t), i); err != nil {
					t.Errorf("push %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wantErr(t, "offer while others wait", ref.Offer(9), ErrFull)
		close(gate)
		wg.Wait()
		synctest.Wait()
		if diff := cmp.Diff([]int{0, 1, 2, 3, 4}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestPushEndsWithItsContext(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, handled, _ := gated(t, s, 1)
		mustOffer(t, ref, 0)
		synctest.Wait()
		mustOffer(t, ref, 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		wantErr(t, "push", ref.Push(ctx, 2), context.DeadlineExceeded)
		wantErr(t, "push with an ended context", ref.Push(ctx, 3), context.DeadlineExceeded)
		close(gate)
		synctest.Wait()
		if diff := cmp.Diff([]int{0, 1}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestStopReleasesPush(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref, gate, _, _ := gated(t, s, 1)
		mustOffer(t, ref, 0)
		synctest.Wait()
		mustOffer(t, ref, 1)
		pushed := make(chan error, 1)
		go func() { pushed <- ref.Push(context.Background(), 2) }()
		synctest.Wait()
		ref.RequestStop()
		wantErr(t, "push", <-pushed, ErrStopped) // although Handle still waits
		close(gate)
	})
}

// Every message is handled, lost or refused, whatever the timing.
func TestAllMessagesAreAccountedFor(t *testing.T) {
	const producers, each = 4, 20000
	for _, end := range []string{"stop", "drain"} {
		t.Run(end, func(t *testing.T) {
			s := NewSystem(Options{})
			var handled, lost, accepted, refused atomic.Int64
			spec := script[int]{handle: func(*Ctx[int], int) error {
				if handled.Add(1)%1000 == 0 {
					return errBoom // restarts on the way
				}
				return nil
			}}.spec("a")
			spec.Capacity = 64
			spec.Lost = func(int) { lost.Add(1) }
			spec.Restart = RestartPolicy{Min: time.Microsecond, Max: time.Microsecond, Intensity: 1 << 20}
			ref := mustSpawn(t, s, spec)
			var wg sync.WaitGroup
			for p := range producers {
				wg.Go(func() {
					for i := range each {
						var err error
						if p%2 == 0 {
							err = ref.Push(context.Background(), i)
						} else {
							err = ref.Offer(i)
						}
						switch {
						case err == nil:
							accepted.Add(1)
						case errors.Is(err, ErrFull), errors.Is(err, ErrStopped):
							refused.Add(1)
						default:
							t.Errorf("unexpected error: %v", err)
						}
						if end == "stop" && p == 0 && i == each/2 {
							ref.RequestStop()
						}
					}
				})
			}
			wg.Wait()
			if err := ref.Drain(soon(t)); err != nil {
				t.Fatal(err)
			}
			wantEqual(t, "accepted+refused", accepted.Load()+refused.Load(), producers*each)
			wantEqual(t, "handled+lost", handled.Load()+lost.Load(), accepted.Load())
			wantEqual(t, "Stats.Lost", int64(s.Stats().Kinds["a"].Lost), lost.Load())
			if end == "drain" {
				wantEqual(t, "lost", lost.Load(), 0)
			}
			shutdown(t, s)
		})
	}
}

func TestZeroRefIsStopped(t *testing.T) {
	var ref Ref[int]
	wantErr(t, "offer", ref.Offer(1), ErrStopped)
	wantErr(t, "push", ref.Push(soon(t), 1), ErrStopped)
	wantErr(t, "err", ref.Err(), ErrStopped)
	wantEqual(t, "stop", ref.Stop(soon(t)), nil)
	wantEqual(t, "drain", ref.Drain(soon(t)), nil)
	wantEqual(t, "name", ref.Name(), "none")
	ref.RequestStop()
	<-ref.Done()
	_, err := Ask(soon(t), ref, func(Reply[int]) int { return 1 })
	wantErr(t, "ask", err, ErrStopped)
	if ref != (Ref[int]{}) {
		t.Error("zero refs differ")
	}
}

func TestRingKeepsOrder(t *testing.T) {
	var r ring[int]
	var want, got []int
	next := 0
	for round := range 50 {
		for range round%7 + 1 {
			r.push(next)
			want = append(want, next)
			next++
		}
		for range min(r.len(), round%5+1) {
			got = append(got, r.pop())
		}
	}
	got = append(got, r.take()...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.len() != 0 || r.buf != nil {
		t.Error("take left something")
	}
	for i := range 3 * ringKeep {
		r.push(i)
	}
	for r.len() > 0 {
		r.pop()
	}
	if r.shrink(); r.buf != nil {
		t.Error("shrink kept a large buffer")
	}
}
