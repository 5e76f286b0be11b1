package actors

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestStartLeaderRefusesWhatItCannotServe(t *testing.T) {
	sys := rt.NewSystem(rt.Options{})
	defer func() {
		if err := sys.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	w := newWorld(t, fsm.Options{})
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	bad := DefaultLimits()
	bad.Tick, bad.RetryMax = 0, time.Millisecond
	for _, tc := range []struct {
		name string
		ctx  context.Context
		cfg  Config
		want string
	}{
		{"no term", context.Background(), Config{Replicator: w}, "a term and a replicator are needed"},
		{"no replicator", context.Background(), Config{Term: 1}, "a term and a replicator are needed"},
		{"cancelled", canceled, Config{Term: 1, Replicator: w}, "context canceled"},
		{"limits", context.Background(), Config{Term: 1, Replicator: w, Limits: bad}, "tick must be positive"},
		{"all limits", context.Background(), Config{Term: 1, Replicator: w, Limits: bad}, "longest retry"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := StartLeader(tc.ctx, sys, tc.cfg)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestReadyComesAfterEveryRowHasItsActor(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		var cmds []*commandv1.Command
		for i := range 5000 {
			cmds = append(cmds, arriveAgent(sessionName(i), 1))
		}
		cmds = append(cmds, arriveClient("c"))
		for i := range 200 {
			cmds = append(cmds, createIntercept("c", sessionName(i), 0))
		}
		s.apply(cmds...)
		l, err := StartLeader(context.Background(), s.sys, Config{Term: s.term, Replicator: s.world})
		if err != nil {
			t.Fatal(err)
		}
		s.leader = l
		<-l.Ready()
		synctest.Wait() // the last ones spawned have yet to start
		got := l.Stats()
		if got.Agents != 5000 || got.Clients != 1 || got.Intercepts != 200 {
			t.Errorf("ready with %d agents, %d clients, %d intercepts", got.Agents, got.Clients, got.Intercepts)
		}
	})
}

func TestStaleTermStopsTheTree(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.set(func() { s.term++ }) // another server leads
		s.attach("a", client, 0, 0)
		s.pass(5 * time.Second)
		select {
		case <-s.leader.ended:
		default:
			t.Error("the tree goes on in a term that is over")
		}
		s.pass(time.Hour)
		s.wantIntercept(icept, dispActive, ownerPresent, "untouched")
		if n := s.sent(func(*commandv1.Command) bool { return true }); n != 1 {
			t.Errorf("%d commands, want the one that was refused", n)
		}
		select {
		case err := <-s.escalated:
			t.Errorf("escalated: %v", err)
		default:
		}
	})
}

func TestStopDoesNotWaitForAnswers(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, _ := s.active()
		idle := s.agent("idle", older)
		s.set(func() { s.onPropose = func(*commandv1.Command) fault { return hang } })
		s.attach("a", client, 0, 0)
		s.pass(17 * time.Second)
		s.wantSession(idle, true, "its expiry has no answer")
		began := time.Now()
		s.stop()
		if took := time.Since(began); took > time.Second {
			t.Errorf("stop took %v", took)
		}
		stats := s.sys.Stats()
		for _, kind := range []string{"leader", "projector", "janitor", "intercept", "agent"} {
			if n := stats.Kinds[kind].Live; n != 0 {
				t.Errorf("%d actors of kind %s left", n, kind)
			}
		}
	})
}

func TestStopEndsWithItsContext(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		release := make(chan struct{})
		s.set(func() {
			s.onConfirm = func() error { <-release; return nil } // ignores its context
		})
		s.agent("p", older)
		s.pass(17 * time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.leader.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stop: %v, want its context's error", err)
		}
		close(release)
	})
}

// TestPoisonedRowIsQuarantinedAlone makes one row crash its actor.
func TestPoisonedRowIsQuarantinedAlone(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		agent, client, icept := s.active()
		bad := s.intercept(client, "bad", 0)
		s.review(agent, bad)
		poisoned := true
		s.set(func() {
			s.onPropose = func(c *commandv1.Command) fault {
				if poisoned && c.GetSetIntercept().GetId() == bad {
					defer s.mu.Unlock() // the panic leaves Propose's lock held
					panic("poisoned row")
				}
				return none
			}
		})
		s.attach("a", client, 0, 0)
		s.pass(5 * time.Second)
		s.wantIntercept(icept, dispActive, ownerAway, "the healthy row")
		s.pass(20 * time.Second)
		s.wantIntercept(bad, dispActive, ownerPresent, "the poisoned row")
		if got := s.leader.Stats(); got.Quarantined != 1 || got.Intercepts != 1 {
			t.Fatalf("quarantined %d, live %d; want 1, 1", got.Quarantined, got.Intercepts)
		}
		s.set(func() { poisoned = false })
		s.attach("a", client, 1, 0) // hints do not end a quarantine
		s.attach("a", client, 0, 0)
		s.pass(10 * time.Second)
		s.wantIntercept(bad, dispActive, ownerPresent, "in quarantine")
		s.pass(60 * time.Second)
		s.wantIntercept(bad, dispActive, ownerAway, "after the quarantine")
		if got := s.leader.Stats(); got.Quarantined != 0 || got.Intercepts != 2 {
			t.Errorf("quarantined %d, live %d; want 0, 2", got.Quarantined, got.Intercepts)
		}
	})
}

func TestTooManyPoisonedRowsEscalate(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		agent, client := s.agent("p", newer), s.client("c")
		s.keepAlive(agent)
		for i := range 25 {
			s.intercept(client, sessionName(i), 0)
		}
		s.set(func() {
			s.onPropose = func(*commandv1.Command) fault {
				defer s.mu.Unlock()
				panic("poisoned row")
			}
		})
		s.pass(time.Minute)
		select {
		case err := <-s.escalated:
			if !strings.Contains(err.Error(), "poisoned row") {
				t.Errorf("escalated %v", err)
			}
		default:
			t.Fatal("nothing escalated")
		}
		select {
		case <-s.leader.ended:
		default:
			t.Error("the tree goes on")
		}
	})
}

func TestJanitorThatKeepsFailingEscalates(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		s.set(func() {
			s.onConfirm = func() error { panic("no way to ask") }
		})
		for i := range 10 {
			s.agent(sessionName(i), older)
			s.pass(3 * time.Second)
		}
		s.pass(30 * time.Second)
		select {
		case err := <-s.escalated:
			if !strings.Contains(err.Error(), "janitor") {
				t.Errorf("escalated %v", err)
			}
		default:
			t.Fatal("nothing escalated")
		}
	})
}

// TestJanitorThatFailsOnceGoesOn makes an expiry crash the janitor; the
// session's actor, which gets no answer, asks again.
func TestJanitorThatFailsOnceGoesOn(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		id := s.agent("p", older)
		first := true
		s.set(func() {
			s.onConfirm = func() error {
				if first {
					first = false
					panic("once")
				}
				return nil
			}
		})
		s.pass(2 * time.Minute)
		s.wantSession(id, false, "in the end")
		if got := s.leader.Stats().AwakeSessions; got != 0 {
			t.Errorf("%d session actors awake", got)
		}
	})
}

// TestProjectorThatFailsStartsOver makes the projector crash while it reads
// the state; the intercept actors it had stay the only ones.
func TestProjectorThatFailsStartsOver(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.set(func() {
			s.onRoot = func(who string) {
				if strings.Contains(who, "(*projector).turn") {
					s.onRoot = nil
					panic("once")
				}
			}
		})
		other := s.intercept(client, "other", 0)
		s.pass(2 * time.Second)
		if got := s.sys.Stats().Kinds["projector"].Restarts; got != 1 {
			t.Fatalf("%d restarts of the projector, want 1", got)
		}
		if got := s.leader.Stats().Intercepts; got != 2 {
			t.Errorf("%d intercept actors, want 2", got)
		}
		s.attach("a", client, 0, 0)
		s.pass(5 * time.Second)
		s.wantIntercept(icept, dispActive, ownerAway, "known before the crash")
		s.wantIntercept(other, dispWaiting, ownerAway, "made around it")
	})
}

// TestProjectorCatchesUpAfterAnOverrun changes more at once than the ring of
// events holds.
func TestProjectorCatchesUpAfterAnOverrun(t *testing.T) {
	onStageWith(t, fsm.Options{RingSize: 16}, func(t *testing.T, s *stage) {
		s.start()
		client := s.client("c")
		gone := s.client("gone")
		agent := s.agent("p", newer)
		s.keepAlive(agent)
		s.attach("a", client, 1, 0)
		old := s.intercept(client, "old", 0)
		synctest.Wait()
		cmds := []*commandv1.Command{
			{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: gone}}},
			{Op: &commandv1.Command_RemoveIntercept{
				RemoveIntercept: &commandv1.RemoveIntercept{SessionId: client, Name: "old"},
			}},
		}
		for i := range 100 {
			cmds = append(cmds, createIntercept(client, sessionName(i), 0))
		}
		s.apply(cmds...)
		synctest.Wait()
		got := s.leader.Stats()
		if got.Resyncs == 0 {
			t.Error("the ring was large enough")
		}
		if got.Intercepts != 100 || got.Clients != 1 {
			t.Errorf("%d intercept actors, %d clients; want 100, 1", got.Intercepts, got.Clients)
		}
		if _, ok := s.m.Root().Intercept(old); ok {
			t.Error("old intercept is still there")
		}
		s.pass(20 * time.Second)
		s.leader.DropServer("a")
		s.pass(5 * time.Second)
		s.wantAll(100, dispWaiting, ownerAway)
	})
}

// TestSessionWhoseActorKeepsFailingIsLeftAlone makes the actors of sessions
// crash; the session is tried again after the quarantine.
func TestSessionWhoseActorKeepsFailingIsLeftAlone(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		id := s.agent("p", older)
		s.set(func() {
			s.onRoot = func(who string) {
				if strings.Contains(who, "(*sessionActor).look") {
					panic("poisoned row")
				}
			}
		})
		s.pass(40 * time.Second)
		if got := s.sys.Stats().Kinds["agent"]; got.Quarantined != 1 || got.Live != 0 {
			t.Fatalf("quarantined %d, live %d; want 1, 0", got.Quarantined, got.Live)
		}
		s.set(func() { s.onRoot = nil })
		s.wantSession(id, true, "in quarantine")
		s.pass(65 * time.Second)
		s.wantSession(id, false, "after it")
	})
}
