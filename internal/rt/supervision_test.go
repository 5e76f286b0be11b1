package rt

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// failing is an actor whose every Start fails, and the times of them.
func failing(name string, p RestartPolicy) (Spec[int], *journal[time.Time]) {
	var times journal[time.Time]
	spec := script[int]{start: func(*Ctx[int]) error {
		times.add(time.Now())
		return errBoom
	}}.spec(name)
	spec.Restart = p
	return spec, &times
}

func TestBackoffGrows(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		spec, times := failing("a", RestartPolicy{Intensity: 12, Window: time.Hour})
		ref := mustSpawn(t, s, spec)
		<-ref.Done()
		got := times.all()
		wantEqual(t, "starts", len(got), 13)
		want := DefaultRestartMin
		for i := 1; i < len(got); i++ {
			delay := got[i].Sub(got[i-1])
			low, high := time.Duration(0.8*float64(want)), time.Duration(1.2*float64(want))
			if delay < low || delay > min(high, DefaultRestartMax) {
				t.Errorf("delay %d: %v, want %v ± 20 %%", i, delay, want)
			}
			want = min(2*want, DefaultRestartMax)
		}
	})
}

func TestBackoffForgetsOldFailures(t *testing.T) {
	var h history
	p := RestartPolicy{Min: time.Second, Intensity: 2}.normal()
	now := time.Unix(0, 0)
	near := func(d, want time.Duration) {
		t.Helper()
		if d < want*8/10 || d > want*12/10 {
			t.Errorf("delay %v, want about %v", d, want)
		}
	}
	for _, want := range []time.Duration{time.Second, 2 * time.Second} {
		d, ok := h.failed(p, now, 0.9)
		wantEqual(t, "allowed", ok, true)
		near(d, want)
	}
	_, ok := h.failed(p, now, 0.5)
	wantEqual(t, "third at once", ok, false)
	d, ok := h.failed(p, now.Add(p.Window), 0.1)
	wantEqual(t, "third after the window", ok, true)
	near(d, time.Second)
}

func TestPolicyDefaults(t *testing.T) {
	want := RestartPolicy{
		Min: 100 * time.Millisecond, Max: 10 * time.Second, Intensity: 5, Window: time.Minute,
		OnExceed: Quarantine,
	}
	if diff := cmp.Diff(want, RestartPolicy{}.normal()); diff != "" {
		t.Errorf("restart policy (-want +got):\n%s", diff)
	}
	wantEqual(t, "NoRestart", RestartPolicy{Intensity: NoRestart}.normal().Intensity, 0)
	wantEqual(t, "Max below Min", RestartPolicy{Min: time.Hour}.normal().Max, time.Hour)
	wantGroup := GroupPolicy{
		QuarantineMin: 20, QuarantineShare: 0.1, Window: time.Minute, OnExceed: Escalate,
	}
	if diff := cmp.Diff(wantGroup, GroupPolicy{}.normal()); diff != "" {
		t.Errorf("group policy (-want +got):\n%s", diff)
	}
	g := groupState{policy: wantGroup}
	for total, want := range map[int]int{0: 20, 200: 20, 201: 21, 1000: 100, 1001: 101} {
		wantEqual(t, fmt.Sprintf("limit of %d", total), g.limit(total), want)
	}
}

func TestQuarantineLeavesSiblingsAlone(t *testing.T) {
	var out logBuffer
	bubble(t, Options{Logger: out.logger(slog.LevelWarn), OnEscalate: func(child string, err error) {
		t.Errorf("escalated: %s: %v", child, err)
	}}, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "agents", GroupPolicy{})
		var log journal[string]
		sibling := mustSpawn(t, g, recording(&log))
		spec, times := failing("bad", RestartPolicy{})
		var reasons journal[Reason]
		inner := spec.New
		spec.New = func() Behavior[int] {
			b := inner().(script[int])
			b.stop = func(_ *Ctx[int], r Reason) { reasons.add(r) }
			return b
		}
		var lost journal[int]
		spec.Lost = lost.add
		bad := mustSpawn(t, g, spec)
		mustOffer(t, bad, 1, 2)
		<-bad.Done()
		wantEqual(t, "starts", len(times.all()), 1+DefaultRestartIntensity)
		wantErr(t, "Err", bad.Err(), ErrFailed)
		wantErr(t, "Err", bad.Err(), errBoom)
		wantErr(t, "offer", bad.Offer(3), ErrStopped)
		if diff := cmp.Diff([]int{1, 2}, lost.all()); diff != "" {
			t.Errorf("lost (-want +got):\n%s", diff)
		}
		want := []Reason{
			ReasonRestarting, ReasonRestarting, ReasonRestarting, ReasonRestarting, ReasonRestarting,
			ReasonFailed,
		}
		if diff := cmp.Diff(want, reasons.all()); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
		mustOffer(t, sibling, "still here")
		synctest.Wait()
		if diff := cmp.Diff([]string{"start", "still here"}, log.all()); diff != "" {
			t.Errorf("sibling (-want +got):\n%s", diff)
		}
		stats := s.Stats().Kinds["bad"]
		if diff := cmp.Diff(KindStats{Depth: 2, Lost: 2, Failures: 6, Restarts: 5, Quarantined: 1}, stats); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
	})
	if got := strings.Count(out.String(), "quarantined"); got != 1 {
		t.Errorf("quarantine logged %d times:\n%s", got, out.String())
	}
}

// escalations collects the calls of OnEscalate.
type escalations struct{ journal[string] }

func (e *escalations) note(child string, reason error) {
	e.add(fmt.Sprintf("%s: %v", child, reason))
}

func TestGroupEscalatesWhenTooManyAreQuarantined(t *testing.T) {
	var esc escalations
	bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
		leader := mustGroup(t, s, "leader@3", GroupPolicy{})
		agents := mustGroup(t, leader, "agents", GroupPolicy{QuarantineMin: 3, QuarantineShare: 0.01})
		good := mustSpawn(t, agents, script[int]{}.spec("good"))
		for i := range 3 {
			if i > 0 && len(esc.all()) > 0 {
				t.Errorf("escalated after %d: %v", i, esc.all())
			}
			spec, _ := failing(fmt.Sprintf("bad:%d", i), RestartPolicy{Intensity: NoRestart})
			<-mustSpawn(t, agents, spec).Done()
			synctest.Wait()
		}
		want := []string{"leader@3: leader@3.agents: 3 of 4 children quarantined within 1m0s, " +
			"the last one: leader@3.agents.bad:2: start: boom"}
		if diff := cmp.Diff(want, esc.all()); diff != "" {
			t.Errorf("escalations (-want +got):\n%s", diff)
		}
		// The group goes on until its owner decides.
		wantEqual(t, "good", good.Err(), nil)
		mustSpawn(t, agents, script[int]{}.spec("another"))
		// One more is no new reason.
		spec, _ := failing("bad:3", RestartPolicy{Intensity: NoRestart})
		<-mustSpawn(t, agents, spec).Done()
		synctest.Wait()
		wantEqual(t, "escalations", len(esc.all()), 1)
	})
}

func TestQuarantinesAreForgottenAfterTheWindow(t *testing.T) {
	var esc escalations
	bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "g", GroupPolicy{QuarantineMin: 2})
		for range 5 {
			spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart})
			<-mustSpawn(t, g, spec).Done()
			time.Sleep(DefaultGroupWindow)
		}
		wantEqual(t, "escalations", len(esc.all()), 0)
	})
}

func TestShareOfALargeGroup(t *testing.T) {
	var esc escalations
	bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "g", GroupPolicy{QuarantineMin: 2})
		for range 60 {
			mustSpawn(t, g, script[int]{}.spec("good"))
		}
		// Of 60 + n, 10 % are reached by the seventh.
		for i := range 7 {
			wantEqual(t, fmt.Sprintf("escalations after %d", i), len(esc.all()), 0)
			spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart})
			<-mustSpawn(t, g, spec).Done()
			synctest.Wait()
		}
		wantEqual(t, "escalations", len(esc.all()), 1)
	})
}

func TestQuarantineOfAGroup(t *testing.T) {
	var esc escalations
	bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
		outer := mustGroup(t, s, "outer", GroupPolicy{QuarantineMin: 2})
		sibling := mustSpawn(t, outer, script[int]{}.spec("sibling"))
		var groups []*Group
		for range 2 {
			g := mustGroup(t, outer, "inner", GroupPolicy{QuarantineMin: 1, OnExceed: Quarantine})
			good := mustSpawn(t, g, script[int]{}.spec("good"))
			spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart})
			bad := mustSpawn(t, g, spec)
			<-g.Done()
			synctest.Wait() // its parent knows too
			wantErr(t, "group", g.Err(), ErrFailed)
			wantErr(t, "bad", bad.Err(), ErrFailed)
			wantErr(t, "good", good.Err(), ErrStopped)
			groups = append(groups, g)
		}
		synctest.Wait()
		_, err := Spawn(groups[0], script[int]{}.spec("late"))
		wantErr(t, "spawn", err, ErrStopped)
		wantEqual(t, "sibling", sibling.Err(), nil)
		wantEqual(t, "Quarantined groups", s.Stats().Kinds["group"].Quarantined, 2)
		want := []string{"outer: outer: 2 of 3 children quarantined within 1m0s, the last one: " +
			"outer.inner: 1 of 2 children quarantined within 1m0s, the last one: outer.inner.bad: start: boom"}
		if diff := cmp.Diff(want, esc.all()); diff != "" {
			t.Errorf("escalations (-want +got):\n%s", diff)
		}
	})
}

func TestEscalationOfAnActor(t *testing.T) {
	escalating := RestartPolicy{Intensity: NoRestart, OnExceed: Escalate}

	t.Run("below the root", func(t *testing.T) {
		var esc escalations
		bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
			spec, _ := failing("raftbridge", escalating)
			ref := mustSpawn(t, s, spec)
			<-ref.Done()
			synctest.Wait()
			wantErr(t, "Err", ref.Err(), ErrFailed)
			if diff := cmp.Diff([]string{"raftbridge: raftbridge: start: boom"}, esc.all()); diff != "" {
				t.Errorf("escalations (-want +got):\n%s", diff)
			}
		})
	})

	t.Run("below groups", func(t *testing.T) {
		var esc escalations
		bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
			leader := mustGroup(t, s, "leader@3", GroupPolicy{})
			inner := mustGroup(t, leader, "inner", GroupPolicy{})
			spec, _ := failing("projector", escalating)
			<-mustSpawn(t, inner, spec).Done()
			synctest.Wait()
			want := []string{"leader@3: leader@3.inner.projector: start: boom"}
			if diff := cmp.Diff(want, esc.all()); diff != "" {
				t.Errorf("escalations (-want +got):\n%s", diff)
			}
			wantEqual(t, "group", leader.Err(), nil)
		})
	})

	t.Run("contained by a group", func(t *testing.T) {
		var esc escalations
		bubble(t, Options{OnEscalate: esc.note}, func(t *testing.T, s *System) {
			g := mustGroup(t, s, "g", GroupPolicy{OnExceed: Quarantine})
			spec, _ := failing("bad", escalating)
			<-mustSpawn(t, g, spec).Done()
			synctest.Wait()
			wantEqual(t, "escalations", len(esc.all()), 0)
			wantEqual(t, "Quarantined", s.Stats().Kinds["bad"].Quarantined, 1)
			wantEqual(t, "group", g.Err(), nil)
		})
	})

	t.Run("below an actor", func(t *testing.T) {
		bubble(t, Options{}, func(t *testing.T, s *System) {
			starts := 0
			parent := mustSpawn(t, s, script[int]{start: func(c *Ctx[int]) error {
				if starts++; starts == 1 {
					spec, _ := failing("bad", escalating)
					_, err := Spawn(c, spec)
					return err
				}
				return nil
			}}.spec("parent"))
			time.Sleep(time.Second)
			synctest.Wait()
			wantEqual(t, "starts of the parent", starts, 2)
			wantEqual(t, "parent", parent.Err(), nil)
			wantEqual(t, "Live children", s.Stats().Kinds["bad"].Live, 0)
		})
	})

	t.Run("of a group below an actor", func(t *testing.T) {
		bubble(t, Options{}, func(t *testing.T, s *System) {
			starts := 0
			var groups journal[*Group]
			mustSpawn(t, s, script[int]{start: func(c *Ctx[int]) error {
				starts++
				g, err := SpawnGroup(c, "g", GroupPolicy{QuarantineMin: 1})
				if err != nil || starts > 1 {
					return err
				}
				groups.add(g)
				spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart})
				_, err = Spawn(g, spec)
				return err
			}}.spec("parent"))
			time.Sleep(time.Second)
			synctest.Wait()
			wantEqual(t, "starts of the parent", starts, 2)
			wantErr(t, "its first group", groups.all()[0].Err(), ErrStopped)
			wantEqual(t, "Restarts", s.Stats().Kinds["parent"].Restarts, 1)
		})
	})
}

// Two children that escalate together are one failure of their parent.
func TestParentFailsOnce(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		starts := 0
		mustSpawn(t, s, script[int]{start: func(c *Ctx[int]) error {
			if starts++; starts > 1 {
				return nil
			}
			for range 3 {
				spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart, OnExceed: Escalate})
				if _, err := Spawn(c, spec); err != nil {
					return err
				}
			}
			return nil
		}}.spec("parent"))
		time.Sleep(time.Minute)
		synctest.Wait()
		wantEqual(t, "starts", starts, 2)
		wantEqual(t, "Restarts", s.Stats().Kinds["parent"].Restarts, 1)
	})
}

func TestStoppingAGroupStopsItsSubtreeFirst(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, s *System) {
		leader := mustGroup(t, s, "leader", GroupPolicy{})
		inner := mustGroup(t, leader, "inner", GroupPolicy{})
		var log journal[string]
		slow := script[int]{
			start: func(c *Ctx[int]) error {
				c.Go("w", func(ctx context.Context) int {
					<-ctx.Done()
					time.Sleep(time.Second)
					log.add(c.Name() + " worker")
					return 0
				})
				return nil
			},
			stop: func(c *Ctx[int], r Reason) { log.add(c.Name() + " " + r.String()) },
		}
		a := mustSpawn(t, inner, slow.spec("a"))
		mustSpawn(t, s, slow.spec("other"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		wantErr(t, "stop with a short deadline", leader.Stop(ctx), context.DeadlineExceeded)
		wantErr(t, "offer", a.Offer(1), ErrStopped)
		_, err := Spawn(leader, slow.spec("late"))
		wantErr(t, "spawn", err, ErrStopped)
		wantEqual(t, "Err", leader.Err(), nil)
		if err := leader.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"leader.inner.a worker", "leader.inner.a stopped"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantErr(t, "inner", inner.Err(), ErrStopped)
		wantErr(t, "leader", leader.Err(), ErrStopped)
		<-inner.Done()
		inner.RequestStop()
		wantEqual(t, "Live groups", s.Stats().Kinds["group"].Live, 1) // the root
	})
}

func TestOnEscalateMayShutDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan error, 1)
		var s *System
		s = NewSystem(Options{OnEscalate: func(string, error) { done <- s.Shutdown(soon(t)) }})
		spec, _ := failing("bad", RestartPolicy{Intensity: NoRestart, OnExceed: Escalate})
		mustSpawn(t, s, spec)
		wantEqual(t, "shutdown", <-done, nil)
	})
}

func TestEscalationsOfOneChildAreMerged(t *testing.T) {
	var esc escalations
	var release chan struct{}
	bubble(t, Options{OnEscalate: func(child string, _ error) {
		esc.note(child, nil)
		<-release
	}}, func(t *testing.T, s *System) {
		release = make(chan struct{}) // of the bubble
		for range 4 {
			for _, name := range []string{"a", "b"} {
				spec, _ := failing(name, RestartPolicy{Intensity: NoRestart, OnExceed: Escalate})
				<-mustSpawn(t, s, spec).Done()
				synctest.Wait()
			}
		}
		close(release)
		synctest.Wait()
		if diff := cmp.Diff([]string{"a: <nil>", "b: <nil>", "a: <nil>"}, esc.all()); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

func TestConcurrentSpawnAndStopOfAGroup(t *testing.T) {
	s := NewSystem(Options{})
	for range 20 {
		g := mustGroup(t, s, "g", GroupPolicy{})
		errs := make(chan error)
		for range 4 {
			go func() {
				for {
					if _, err := Spawn(g, script[int]{}.spec("a")); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		if err := g.Stop(soon(t)); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			wantErr(t, "spawn", <-errs, ErrStopped)
		}
	}
	wantEqual(t, "Live", s.Stats().Kinds["a"].Live, 0)
	shutdown(t, s)
}
