package rt

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWorkerResultArrivesThoughTheMailboxIsFull(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		gate := make(chan struct{})
		var handled journal[int]
		spec := script[int]{handle: func(c *Ctx[int], m int) error {
			if m == 0 {
				c.Go("work", func(context.Context) int { return 100 })
				c.After(time.Millisecond, 200)
				<-gate
			}
			handled.add(m)
			return nil
		}}.spec("a")
		spec.Capacity = 2
		ref := mustSpawn(t, s, spec)
		mustOffer(t, ref, 0)
		synctest.Wait()
		mustOffer(t, ref, 1, 2)
		wantErr(t, "offer", ref.Offer(3), ErrFull)
		time.Sleep(time.Second)
		close(gate)
		synctest.Wait()
		// They take turns with the messages of others.
		if diff := cmp.Diff([]int{0, 100, 1, 200, 2}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestWorkersDoNotStarveMessages(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var handled journal[string]
		n := 0
		ref := mustSpawn(t, s, script[string]{handle: func(c *Ctx[string], m string) error {
			handled.add(m)
			if n++; m == "work" && n < 6 {
				c.After(0, "work")
				c.After(0, "work")
				time.Sleep(time.Millisecond) // both have fired
			}
			return nil
		}}.spec("a"))
		mustOffer(t, ref, "work", "x", "y", "z")
		time.Sleep(time.Second)
		synctest.Wait()
		want := []string{"work", "work", "x", "work", "y", "work", "z"}
		if diff := cmp.Diff(want, handled.all()[:len(want)]); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestStopCancelsAndAwaitsWorkers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		ref := mustSpawn(t, s, script[int]{
			start: func(c *Ctx[int]) error {
				c.Go("slow to end", func(ctx context.Context) int {
					<-ctx.Done()
					log.add("cancelled")
					time.Sleep(time.Second)
					log.add("worker ended")
					return 1
				})
				return nil
			},
			handle: func(*Ctx[int], int) error { log.add("result"); return nil },
			stop:   func(*Ctx[int], Reason) { log.add("stop hook") },
		}.spec("a"))
		synctest.Wait()
		began := time.Now()
		if err := ref.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "time to stop", time.Since(began), time.Second)
		if diff := cmp.Diff([]string{"cancelled", "worker ended", "stop hook"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantEqual(t, "Stale", s.Stats().Kinds["a"].Stale, 1)
	})
}

func TestRestartCancelsAndAwaitsWorkers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		starts := 0
		ref := mustSpawn(t, s, script[string]{
			start: func(c *Ctx[string]) error {
				log.add("start")
				if starts++; starts == 1 {
					c.Go("stubborn", func(ctx context.Context) string {
						<-ctx.Done()
						time.Sleep(time.Hour) // longer than any backoff
						log.add("worker ended")
						return "stale"
					})
				}
				return nil
			},
			handle: func(_ *Ctx[string], m string) error {
				log.add(m)
				if m == "fail" {
					return errBoom
				}
				return nil
			},
			stop: func(_ *Ctx[string], r Reason) { log.add(r.String()) },
		}.spec("a"))
		mustOffer(t, ref, "fail", "later")
		time.Sleep(30 * time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"start", "fail"}, log.all()); diff != "" {
			t.Errorf("while the worker runs (-want +got):\n%s", diff)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		want := []string{"start", "fail", "worker ended", "restarting", "start", "later"}
		if diff := cmp.Diff(want, log.all()); diff != "" {
			t.Errorf("after it (-want +got):\n%s", diff)
		}
		wantEqual(t, "Stale", s.Stats().Kinds["a"].Stale, 1)
	})
}

// A result that is queued when the incarnation fails is dropped as well.
func TestQueuedResultsOfAFailedIncarnationAreDropped(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var handled journal[string]
		ref := mustSpawn(t, s, script[string]{handle: func(c *Ctx[string], m string) error {
			handled.add(m)
			if m == "fail" {
				c.Go("w", func(context.Context) string { return "stale result" })
				c.After(0, "stale tick")
				c.After(0, "stopped tick").Stop()
				c.After(time.Hour, "late tick")
				time.Sleep(time.Second) // all but the last are queued
				return errBoom
			}
			return nil
		}}.spec("a"))
		mustOffer(t, ref, "fail", "next")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]string{"fail", "next"}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		wantEqual(t, "Stale", s.Stats().Kinds["a"].Stale, 2)
	})
}

func TestStopWhileARestartWaitsForWorkers(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		release := make(chan struct{})
		var log journal[string]
		ref := mustSpawn(t, s, script[string]{
			start: func(c *Ctx[string]) error {
				log.add("start")
				c.Go("w", func(context.Context) string { <-release; return "" })
				return nil
			},
			handle: func(*Ctx[string], string) error { return errBoom },
			stop:   func(_ *Ctx[string], r Reason) { log.add(r.String()) },
		}.spec("a"))
		mustOffer(t, ref, "fail")
		time.Sleep(time.Minute) // the restart is held back now
		ref.RequestStop()
		synctest.Wait()
		select {
		case <-ref.Done():
			t.Error("stopped before the worker ended")
		default:
		}
		close(release)
		<-ref.Done()
		if diff := cmp.Diff([]string{"start", "stopped"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestPanicOfAWorkerIsAFailure(t *testing.T) {
	for name, end := range map[string]func(){
		"panic":  func() { panic(errBoom) },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(t *testing.T, s *System) {
				starts := 0
				var cause error
				spec := script[int]{start: func(c *Ctx[int]) error {
					if starts++; starts == 1 {
						c.Go("dial", func(context.Context) int { end(); return 0 })
					}
					return nil
				}}.spec("a")
				ref := mustSpawn(t, s, spec)
				time.Sleep(time.Second)
				synctest.Wait()
				wantEqual(t, "starts", starts, 2)
				wantEqual(t, "Err", ref.Err(), nil)

				spec.Restart.Intensity = NoRestart
				starts = 0
				ref = mustSpawn(t, s, spec)
				<-ref.Done()
				cause = ref.Err()
				wantErr(t, "Err", cause, ErrFailed)
				if name == "panic" {
					wantErr(t, "Err", cause, errBoom)
					p, ok := errors.AsType[*PanicError](cause)
					if !ok || len(p.Stack) == 0 {
						t.Errorf("no stack in %v", cause)
					}
				}
			})
		})
	}
}

func TestPanicOfAWorkerAfterItsActorIsLogged(t *testing.T) {
	var out logBuffer
	bubble(t, Options{Logger: out.logger(slog.LevelInfo)}, func(t *testing.T, s *System) {
		ref := mustSpawn(t, s, script[int]{start: func(c *Ctx[int]) error {
			c.Go("dial", func(ctx context.Context) int {
				<-ctx.Done()
				panic(errBoom)
			})
			return nil
		}}.spec("a"))
		synctest.Wait()
		wantEqual(t, "stop", ref.Stop(soon(t)), nil)
		wantErr(t, "Err", ref.Err(), ErrStopped)
		wantEqual(t, "Failures", s.Stats().Kinds["a"].Failures, 0)
	})
	if got := out.String(); !strings.Contains(got, "worker dial: panic: boom") {
		t.Errorf("the panic is not in the log:\n%s", got)
	}
}

func TestAfterIsCancelledByRestartAndStop(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var handled journal[string]
		first := true
		ref := mustSpawn(t, s, script[string]{
			start: func(c *Ctx[string]) error {
				if first {
					first = false
					c.After(time.Minute, "of the first")
				} else {
					c.After(time.Hour, "of the second")
				}
				return nil
			},
			handle: func(_ *Ctx[string], m string) error {
				handled.add(m)
				if m == "fail" {
					return errBoom
				}
				return nil
			},
		}.spec("a"))
		mustOffer(t, ref, "fail")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]string{"fail", "of the second"}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
	})
}

func TestTimerStopTakesTheMessageBack(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var handled journal[string]
		var results journal[bool]
		var ticked *Timer
		ref := mustSpawn(t, s, script[string]{handle: func(c *Ctx[string], m string) error {
			handled.add(m)
			switch m {
			case "go":
				a, b, d := c.After(time.Minute, "a"), c.After(time.Second, "b"), c.After(time.Hour, "d")
				results.add(b.Stop())
				results.add(b.Stop())
				results.add(a.Stop())
				results.add(d.Stop())
				queued := c.After(time.Second, "queued")
				time.Sleep(2 * time.Second)
				results.add(queued.Stop())
				results.add(queued.Stop())
				ticked = c.After(time.Second, "tick")
			case "tick":
				results.add(ticked.Stop())
			}
			return nil
		}}.spec("a"))
		mustOffer(t, ref, "go")
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if diff := cmp.Diff([]string{"go", "tick"}, handled.all()); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]bool{true, false, true, true, true, false, false}, results.all()); diff != "" {
			t.Errorf("results of Stop (-want +got):\n%s", diff)
		}
		wantEqual(t, "nil timer", (*Timer)(nil).Stop(), false)
		wantEqual(t, "zero timer", new(Timer).Stop(), false)
	})
}

// Fail, work, tick and stop at the same time; the race detector and the
// counters are the judges.
func TestWorkersAndTimersUnderChurn(t *testing.T) {
	s := NewSystem(Options{})
	var wg sync.WaitGroup
	for range 20 {
		spec := script[int]{
			start: func(c *Ctx[int]) error {
				for i := range 5 {
					c.Go("w", func(ctx context.Context) int {
						select {
						case <-ctx.Done():
						case <-time.After(time.Duration(i) * 100 * time.Microsecond):
						}
						return i
					})
					c.After(time.Duration(i)*100*time.Microsecond, i)
				}
				return nil
			},
			handle: func(c *Ctx[int], m int) error {
				c.After(0, m+1).Stop()
				if m%7 == 4 {
					return errBoom
				}
				return nil
			},
		}.spec("a")
		spec.Restart = RestartPolicy{Min: time.Microsecond, Max: time.Microsecond, Intensity: 1 << 20}
		ref := mustSpawn(t, s, spec)
		wg.Go(func() {
			for i := range 200 {
				if err := ref.Push(context.Background(), i); err != nil {
					t.Errorf("push: %v", err)
				}
			}
			if err := ref.Stop(soon(t)); err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
	wg.Wait()
	wantEqual(t, "Live", s.Stats().Kinds["a"].Live, 0)
	shutdown(t, s)
}
