package rt

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// recorder is a Behavior that writes down what happens to it and does what
// the messages say.
type recorder struct{ log *journal[string] }

func (r *recorder) Start(*Ctx[string]) error {
	r.log.add("start")
	return nil
}

func (r *recorder) Handle(_ *Ctx[string], m string) error {
	r.log.add(m)
	switch m {
	case "panic":
		panic(errBoom)
	case "error":
		return errBoom
	}
	return nil
}

func (r *recorder) Stop(_ *Ctx[string], why Reason) { r.log.add(why.String()) }

func recording(log *journal[string]) Spec[string] {
	return Spec[string]{Name: "recorder", Kind: "recorder", New: func() Behavior[string] {
		return &recorder{log: log}
	}}
}

func TestFailureRestartsOnceAndKeepsTheQueue(t *testing.T) {
	for _, how := range []string{"panic", "error"} {
		t.Run(how, func(t *testing.T) {
			var out logBuffer
			bubble(t, Options{Logger: out.logger(slog.LevelInfo)}, func(t *testing.T, s *System) {
				var log journal[string]
				ref := mustSpawn(t, s, recording(&log))
				mustOffer(t, ref, "a", how, "b", "c")
				synctest.Wait()
				if diff := cmp.Diff([]string{"start", "a", how}, log.all()); diff != "" {
					t.Errorf("before the backoff (-want +got):\n%s", diff)
				}
				time.Sleep(DefaultRestartMax)
				synctest.Wait()
				want := []string{"start", "a", how, "restarting", "start", "b", "c"}
				if diff := cmp.Diff(want, log.all()); diff != "" {
					t.Errorf("after it (-want +got):\n%s", diff)
				}
				stats := s.Stats().Kinds["recorder"]
				wantEqual(t, "Failures", stats.Failures, 1)
				wantEqual(t, "Restarts", stats.Restarts, 1)
				wantEqual(t, "Live", stats.Live, 1)
				wantEqual(t, "Lost", stats.Lost, 0)
			})
			if got := strings.Count(out.String(), "actor failed and will restart"); got != 1 {
				t.Errorf("failure logged %d times, want once:\n%s", got, out.String())
			}
			if how == "panic" && !strings.Contains(out.String(), "recorder).Handle") {
				t.Errorf("no stack of the panic in the log:\n%s", out.String())
			}
			if strings.Contains(out.String(), "[ACTOR]") {
				t.Errorf("the library's own talk is not demoted:\n%s", out.String())
			}
		})
	}
}

func TestEachIncarnationHasAFreshBehaviour(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		made := 0
		var seen journal[int]
		spec := Spec[string]{Name: "a", New: func() Behavior[string] {
			made++
			id := made
			return script[string]{handle: func(_ *Ctx[string], m string) error {
				seen.add(id)
				if m == "fail" {
					return errBoom
				}
				return nil
			}}
		}}
		ref := mustSpawn(t, s, spec)
		mustOffer(t, ref, "x", "fail", "y")
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]int{1, 1, 2}, seen.all()); diff != "" {
			t.Errorf("incarnations (-want +got):\n%s", diff)
		}
	})
}

func TestFailuresOfStartAndNewAreFailures(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		n := 0
		ref := mustSpawn(t, s, Spec[string]{Name: "a", Kind: "a", New: func() Behavior[string] {
			n++
			switch n {
			case 1:
				panic("in New")
			case 2:
				return nil
			}
			k := n
			return script[string]{
				start: func(*Ctx[string]) error {
					log.add("start")
					switch k {
					case 3:
						panic("in Start")
					case 4:
						return errBoom
					}
					return nil
				},
				handle: func(_ *Ctx[string], m string) error { log.add(m); return nil },
				stop:   func(_ *Ctx[string], r Reason) { log.add(r.String()) },
			}
		}})
		mustOffer(t, ref, "hello")
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"start", "restarting", "start", "restarting", "start", "hello"}
		if diff := cmp.Diff(want, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantEqual(t, "Failures", s.Stats().Kinds["a"].Failures, 4)
	})
}

func TestStopHookPanicIsSwallowed(t *testing.T) {
	var out logBuffer
	bubble(t, Options{Logger: out.logger(slog.LevelInfo)}, func(t *testing.T, s *System) {
		panics := script[int]{stop: func(*Ctx[int], Reason) { panic("in the stop hook") }}
		parentStopped := false
		parent := mustSpawn(t, s, script[int]{
			start: func(c *Ctx[int]) error {
				_, err := Spawn(c, panics.spec("child"))
				return err
			},
			stop: func(*Ctx[int], Reason) { parentStopped = true; panic("here too") },
		}.spec("parent"))
		synctest.Wait()
		if err := parent.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "parent stopped", parentStopped, true)
		wantEqual(t, "children alive", s.Stats().Kinds["child"].Live, 0)
	})
	for _, want := range []string{"actor=parent.child", "actor=parent ", "stop hook", "goroutine "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log lacks %q:\n%s", want, out.String())
		}
	}
}

func TestLostHookPanicIsSwallowed(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		gate := make(chan struct{})
		spec := script[int]{handle: func(*Ctx[int], int) error { <-gate; return nil }}.spec("a")
		spec.Lost = func(int) { panic("in the lost hook") }
		ref := mustSpawn(t, s, spec)
		mustOffer(t, ref, 1, 2, 3)
		synctest.Wait()
		ref.RequestStop()
		close(gate)
		wantEqual(t, "stop", ref.Stop(soon(t)), nil)
		wantEqual(t, "Lost", s.Stats().Kinds["a"].Lost, 2)
	})
}

func TestStopRightAfterSpawn(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		for range 100 {
			ref := mustSpawn(t, s, recording(&log))
			if err := ref.Stop(soon(t)); err != nil {
				t.Fatal(err)
			}
		}
		starts, stops := 0, 0
		for _, l := range log.all() {
			switch l {
			case "start":
				starts++
			case "stopped":
				stops++
			}
		}
		wantEqual(t, "stops for each start", stops, starts)
		wantEqual(t, "Live", s.Stats().Kinds["recorder"].Live, 0)
	})
}

func TestStopDuringBackoff(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		ref := mustSpawn(t, s, recording(&log))
		mustOffer(t, ref, "error", "never")
		synctest.Wait()
		if err := ref.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if diff := cmp.Diff([]string{"start", "error", "stopped"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantErr(t, "Err", ref.Err(), ErrStopped)
	})
}

func TestStopSelf(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ended := false
		ref := mustSpawn(t, s, script[int]{handle: func(c *Ctx[int], _ int) error {
			c.StopSelf()
			ended = c.Context().Err() != nil
			wantErr(t, "offer to itself", c.Self().Offer(2), ErrStopped)
			c.Go("late", func(context.Context) int { t.Error("worker ran"); return 0 })
			c.After(0, 1)
			_, err := Spawn(c, script[int]{}.spec("late"))
			wantErr(t, "spawn", err, ErrStopped)
			return errBoom // too late to matter
		}}.spec("a"))
		mustOffer(t, ref, 1)
		<-ref.Done()
		wantErr(t, "Err", ref.Err(), ErrStopped)
		wantEqual(t, "context ended at once", ended, true)
	})
}

func TestStopCancelsTheContextOfARunningHandler(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		ref := mustSpawn(t, s, script[int]{handle: func(c *Ctx[int], _ int) error {
			<-c.Context().Done()
			return nil
		}}.spec("a"))
		mustOffer(t, ref, 1)
		synctest.Wait()
		wantEqual(t, "stop", ref.Stop(soon(t)), nil)
	})
}

func TestStopReportsItsContext(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		gate := make(chan struct{})
		waits := script[int]{handle: func(*Ctx[int], int) error { <-gate; return nil }}
		ref := mustSpawn(t, s, waits.spec("a"))
		mustOffer(t, ref, 1)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		wantErr(t, "stop", ref.Stop(ctx), context.DeadlineExceeded)
		err := s.Shutdown(ctx)
		wantErr(t, "shutdown", err, context.DeadlineExceeded)
		if err == nil || !strings.Contains(err.Error(), "2 still there") {
			t.Errorf("shutdown does not say how many are left: %v", err)
		}
		close(gate)
	})
}

func TestParentStopsChildrenFirst(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		named := func(name string, start func(*Ctx[int]) error) Spec[int] {
			return script[int]{
				start: start,
				stop:  func(c *Ctx[int], r Reason) { log.add(c.Name() + " " + r.String()) },
			}.spec(name)
		}
		ref := mustSpawn(t, s, named("a", func(c *Ctx[int]) error {
			_, err := Spawn(c, named("b", func(c *Ctx[int]) error {
				_, err := Spawn(c, named("c", nil))
				return err
			}))
			return err
		}))
		synctest.Wait()
		if err := ref.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		want := []string{"a.b.c stopped", "a.b stopped", "a stopped"}
		if diff := cmp.Diff(want, log.all()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestRestartStopsChildren(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var children journal[Ref[int]]
		var log journal[string]
		ref := mustSpawn(t, s, script[int]{
			start: func(c *Ctx[int]) error {
				child, err := Spawn(c, script[int]{
					stop: func(_ *Ctx[int], r Reason) { log.add("child " + r.String()) },
				}.spec("child"))
				children.add(child)
				return err
			},
			handle: func(*Ctx[int], int) error { return errBoom },
			stop:   func(_ *Ctx[int], r Reason) { log.add("parent " + r.String()) },
		}.spec("parent"))
		mustOffer(t, ref, 1)
		time.Sleep(time.Second)
		synctest.Wait()
		wantEqual(t, "children made", len(children.all()), 2)
		wantErr(t, "first child", children.all()[0].Err(), ErrStopped)
		wantEqual(t, "second child", children.all()[1].Err(), nil)
		if diff := cmp.Diff([]string{"child stopped", "parent restarting"}, log.all()); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
	})
}

func TestSpawnErrors(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		if _, err := Spawn(s, Spec[int]{New: script[int]{}.spec("x").New}); err == nil {
			t.Error("spawn without a name succeeded")
		}
		if _, err := Spawn(s, Spec[int]{Name: "x"}); err == nil {
			t.Error("spawn without New succeeded")
		}
		if _, err := SpawnGroup(s, "", GroupPolicy{}); err == nil {
			t.Error("spawn of a group without a name succeeded")
		}
		var ctx *Ctx[int]
		mustSpawn(t, s, script[int]{start: func(c *Ctx[int]) error { ctx = c; return nil }}.spec("p"))
		synctest.Wait()
		_, err := Spawn(ctx, script[int]{}.spec("x"))
		wantErr(t, "spawn below an actor from outside", err, ErrOutsideActor)
		wantEqual(t, "Live", s.Stats().Kinds["x"].Live, 0)
		shutdown(t, s)
		_, err = Spawn(s, script[int]{}.spec("x"))
		wantErr(t, "spawn after shutdown", err, ErrStopped)
		_, err = SpawnGroup(s, "g", GroupPolicy{})
		wantErr(t, "spawn of a group after shutdown", err, ErrStopped)
	})
}

func TestNamesMayRepeat(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "leader@3", GroupPolicy{})
		agents := mustGroup(t, g, "agents", GroupPolicy{})
		a := mustSpawn(t, agents, script[int]{}.spec("agent:7f"))
		b := mustSpawn(t, agents, script[int]{}.spec("agent:7f"))
		wantEqual(t, "name", a.Name(), "leader@3.agents.agent:7f")
		wantEqual(t, "name", b.Name(), a.Name())
		if a == b {
			t.Error("two actors have equal refs")
		}
		wantEqual(t, "group name", agents.Name(), "leader@3.agents")
	})
}

func TestLoggerHasTheName(t *testing.T) {
	var out logBuffer
	options := Options{Name: "server-1", Logger: out.logger(slog.LevelInfo)}
	bubble(t, options, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "g", GroupPolicy{})
		mustSpawn(t, g, script[int]{start: func(c *Ctx[int]) error {
			c.Logger().Info("hello")
			c.Logger().Info("again")
			return nil
		}}.spec("a"))
		synctest.Wait()
	})
	if got := strings.Count(out.String(), "system=server-1 actor=g.a"); got != 2 {
		t.Errorf("want two records with system and actor:\n%s", out.String())
	}
}

// Goexit (a t.FailNow in a test's behaviour, say) must not wedge an actor.
func TestGoexitIsAFailure(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var log journal[string]
		ref := mustSpawn(t, s, script[string]{handle: func(_ *Ctx[string], m string) error {
			log.add(m)
			if m == "exit" {
				runtime.Goexit()
			}
			return nil
		}}.spec("a"))
		mustOffer(t, ref, "exit", "after")
		time.Sleep(time.Second)
		synctest.Wait()
		if diff := cmp.Diff([]string{"exit", "after"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantEqual(t, "Restarts", s.Stats().Kinds["a"].Restarts, 1)
	})
}

func TestGoexitInStopHookIsContained(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		var reasons journal[Reason]
		ref := mustSpawn(t, s, script[int]{
			handle: func(_ *Ctx[int], m int) error { return errBoom },
			stop: func(_ *Ctx[int], r Reason) {
				reasons.add(r)
				runtime.Goexit()
			},
		}.spec("a"))
		mustOffer(t, ref, 1)
		time.Sleep(time.Second)
		wantEqual(t, "stop", ref.Stop(soon(t)), nil)
		if diff := cmp.Diff([]Reason{ReasonRestarting, ReasonStopped}, reasons.all()); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
	})
}

func TestSlowHandlersAreCounted(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		type D = time.Duration
		ref := mustSpawn(t, s, script[D]{handle: func(_ *Ctx[D], d D) error {
			time.Sleep(d)
			return nil
		}}.spec("a"))
		mustOffer(t, ref, time.Millisecond, 11*time.Millisecond, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		wantEqual(t, "Slow", s.Stats().Kinds["a"].Slow, 1)
	})
}

func TestIdleActorsHaveNoGoroutine(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		const actors = 100
		before := runtime.NumGoroutine()
		for range actors {
			ref := mustSpawn(t, s, script[int]{}.spec("a"))
			mustOffer(t, ref, 1)
		}
		synctest.Wait()
		// The runtime has some of its own, which come and go.
		if after := runtime.NumGoroutine(); after > before+actors/2 {
			t.Errorf("%d goroutines, before the actors %d", after, before)
		}
	})
}
