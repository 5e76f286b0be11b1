package actors

import (
	"testing"
	"testing/synctest"
	"time"

	manager "trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// active makes an agent, a client with a dial stream at server a, and an
// approved intercept of it, under a leader that is old enough to judge.
func (s *stage) active() (agent, client, icept string) {
	s.t.Helper()
	s.start()
	agent, client = s.agent("p", newer), s.client("c")
	s.attach("a", client, 1, 1)
	icept = s.intercept(client, "web", 0)
	s.review(agent, icept)
	s.keepAlive(agent)
	s.pass(20 * time.Second)
	s.wantIntercept(icept, dispActive, ownerPresent, "before anything")
	return agent, client, icept
}

// keepAlive sends Remain for an agent for as long as the leader is there.
func (s *stage) keepAlive(agent string) {
	l := s.leader
	go func() {
		for {
			select {
			case <-l.ended:
				return
			case <-time.After(10 * time.Second):
				l.Touch(agent, time.Time{})
			}
		}
	}()
}

func TestInterceptFollowsItsOwner(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		agent, client, icept := s.active()
		s.attach("a", client, 0, 1)
		s.pass(5*time.Second - 1)
		s.wantIntercept(icept, dispActive, ownerPresent, "within the grace")
		s.pass(1)
		s.wantIntercept(icept, dispActive, ownerAway, "5 s without a dial stream")
		s.pass(time.Hour)
		s.wantIntercept(icept, dispActive, ownerAway, "an hour later")
		s.attach("b", client, 1, 0)
		s.wantIntercept(icept, dispActive, ownerRearming, "owner back at another server")
		s.pass(time.Hour)
		s.wantIntercept(icept, dispActive, ownerRearming, "no agent has approved")
		s.review(agent, icept)
		synctest.Wait()
		s.wantIntercept(icept, dispActive, ownerPresent, "approved again")
		s.pass(time.Hour)
		if n := s.sent(isSet); n != 2 {
			t.Errorf("%d commands, want 2", n)
		}
	})
}

func TestOwnerOfAWaitingInterceptComesBackPresent(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		agent, client := s.agent("p", newer), s.client("c")
		s.keepAlive(agent)
		icept := s.intercept(client, "web", 0)
		s.pass(10*time.Second - 1)
		s.wantIntercept(icept, dispWaiting, ownerPresent, "young leader")
		s.pass(time.Second)
		s.wantIntercept(icept, dispWaiting, ownerAway, "no dial stream")
		s.attach("a", client, 1, 0)
		s.wantIntercept(icept, dispWaiting, ownerPresent, "dial stream")
		s.pass(time.Hour)
		s.wantIntercept(icept, dispWaiting, ownerPresent, "agents that do not decide are left alone")
	})
}

func TestShortAbsencesChangeNothing(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		for range 50 {
			s.attach("a", client, 0, 0)
			s.pass(4900 * time.Millisecond)
			s.attach("a", client, 1, 0)
			s.pass(time.Millisecond)
		}
		s.wantIntercept(icept, dispActive, ownerPresent, "after 50 short absences")
		if n := s.sent(isSet); n != 0 {
			t.Errorf("%d commands, want none", n)
		}
	})
}

func TestOwnerMovesBetweenServersUnnoticed(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.attach("b", client, 1, 0)
		s.leader.DropServer("a")
		s.pass(time.Minute)
		s.wantIntercept(icept, dispActive, ownerPresent, "the other server holds it")
		s.leader.DropServer("b")
		s.pass(2 * time.Second)
		s.leader.SetAttachments("b", "b-boot", true, []Attachment{{SessionID: client, DialStreams: 1}})
		s.pass(time.Minute)
		s.wantIntercept(icept, dispActive, ownerPresent, "its reports were interrupted for 2 s")
		s.leader.DropServer("b")
		s.pass(5 * time.Second)
		s.wantIntercept(icept, dispActive, ownerAway, "no server is left")
	})
}

func TestNewLeaderWaitsForReportsBeforeItJudges(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.failover()
		s.pass(9900 * time.Millisecond)
		s.attach("a", client, 1, 1)
		s.pass(time.Minute)
		s.wantIntercept(icept, dispActive, ownerPresent, "reported in time")
		s.failover()
		s.pass(10*time.Second - 1)
		s.wantIntercept(icept, dispActive, ownerPresent, "not reported yet")
		s.pass(1)
		s.wantIntercept(icept, dispActive, ownerAway, "not reported within 10 s")
		s.failover()
		s.pass(time.Second)
		s.attach("a", client, 1, 1)
		s.wantIntercept(icept, dispActive, ownerRearming, "back, and believed at once")
	})
}

func TestAgentsComeAndGoWhileTheOwnerIsAway(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		agent, client, icept := s.active()
		s.attach("a", client, 0, 0)
		s.pass(6 * time.Second)
		s.depart(agent)
		s.pass(time.Second)
		s.wantIntercept(icept, dispNoAgent, ownerAway, "no agent, no owner")
		s.attach("a", client, 1, 0)
		s.wantIntercept(icept, dispNoAgent, ownerPresent, "owner back: nothing to arm")
		s.attach("a", client, 0, 0)
		s.pass(time.Minute)
		s.wantIntercept(icept, dispNoAgent, ownerPresent, "without an agent there is nothing to take back")
		s.agent("q", newer)
		s.pass(0)
		s.wantIntercept(icept, dispWaiting, ownerAway, "an agent comes for an owner who left long ago")
		if got := s.leader.Stats(); got.AgentsLost != 1 || got.AgentsBack != 1 {
			t.Errorf("agents lost %d, back %d; want 1, 1", got.AgentsLost, got.AgentsBack)
		}
	})
}

func TestLeaseEnds(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		agent, client := s.agent("p", newer), s.client("c")
		s.keepAlive(agent)
		s.attach("a", client, 1, 0)
		leased := s.intercept(client, "leased", 2*time.Hour)
		forever := s.intercept(client, "forever", 0)
		s.pass(time.Hour)
		s.failover() // a new leader knows of leases from the rows
		s.keepAlive(agent)
		s.attach("a", client, 1, 0)
		s.pass(time.Hour - time.Second)
		s.wantIntercept(leased, dispWaiting, ownerPresent, "before its end")
		s.pass(time.Second)
		if _, ok := s.m.Root().Intercept(leased); ok {
			t.Error("still there at its end")
		}
		s.wantIntercept(forever, dispWaiting, ownerPresent, "without a lease")
		if got := s.leader.Stats(); got.Intercepts != 1 || got.LeasesEnded != 1 {
			t.Errorf("%d intercept actors, %d leases ended; want 1, 1", got.Intercepts, got.LeasesEnded)
		}
	})
}

func TestInterceptWithUnknownOutcomeIsDecidedAgain(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault fault
		fails int
		sent  int
	}{
		{"not applied", lost, 1, 2},
		{"not applied for long", lost, 8, 9},
		{"applied", lateAnswer, 1, 1},
		{"no answer", hang, 1, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				_, client, icept := s.active()
				fails := tc.fails
				s.set(func() {
					s.onPropose = func(*commandv1.Command) fault {
						if fails == 0 {
							return none
						}
						fails--
						return tc.fault
					}
				})
				s.attach("a", client, 0, 0)
				s.pass(time.Minute)
				s.wantIntercept(icept, dispActive, ownerAway, "in the end")
				if n := s.sent(isSet); n != tc.sent {
					t.Errorf("%d commands, want %d", n, tc.sent)
				}
			})
		})
	}
}

// TestChangedRowIsDecidedAnew lets the row change between the decision and its
// application.
func TestChangedRowIsDecidedAnew(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		agent, client, icept := s.active()
		first := true
		s.set(func() {
			s.onPropose = func(c *commandv1.Command) fault {
				if first {
					first = false
					s.applyLocked([]*commandv1.Command{arriveAgent("p", 9999)}) // restarted: it must review anew
				}
				return none
			}
		})
		s.attach("a", client, 0, 0)
		s.pass(5 * time.Second)
		s.wantIntercept(icept, dispWaiting, ownerAway, "at once, on the row as it is now")
		if got := s.leader.Stats(); got.Refused != 1 {
			t.Errorf("%d proposals refused, want 1", got.Refused)
		}
		_ = agent
	})
}

func TestRemovedInterceptLeavesNoActor(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.must(&commandv1.Command{Op: &commandv1.Command_RemoveIntercept{
			RemoveIntercept: &commandv1.RemoveIntercept{SessionId: client, Name: "web"},
		}})
		synctest.Wait()
		if got := s.leader.Stats().Intercepts; got != 0 {
			t.Errorf("%d intercept actors, want none", got)
		}
		if again := s.intercept(client, "web", 0); again != icept {
			t.Fatalf("made %s, want %s again", again, icept)
		}
		s.attach("a", client, 0, 0)
		s.pass(5 * time.Second)
		s.wantIntercept(icept, dispWaiting, ownerAway, "the actor of the new row")
		s.depart(client)
		s.attach("a", client, 0, 0)
		synctest.Wait()
		if got := s.leader.Stats(); got.Intercepts != 0 || got.Clients != 0 || got.AttachedSessions != 0 {
			t.Errorf("left over: %+v", got)
		}
	})
}

func TestManyInterceptsOfOneOwner(t *testing.T) {
	const n = 300
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		agent, client := s.agent("p", newer), s.client("c")
		s.keepAlive(agent)
		s.attach("a", client, 1, 0)
		var cmds []*commandv1.Command
		for i := range n {
			cmds = append(cmds, createIntercept(client, sessionName(i), 0))
		}
		s.apply(cmds...)
		synctest.Wait()
		if got := s.leader.Stats().Intercepts; got != n {
			t.Fatalf("%d actors, want %d", got, n)
		}
		s.pass(20 * time.Second)
		s.leader.DropServer("a")
		s.pass(5 * time.Second)
		s.wantAll(n, dispWaiting, ownerAway)
		s.attach("a", client, 1, 0)
		s.wantAll(n, dispWaiting, ownerPresent)
	})
}

// wantAll fails unless there are n intercepts, all in these states.
func (w *world) wantAll(n int, d manager.InterceptDispositionType, o commandv1.OwnerState) {
	w.t.Helper()
	got := 0
	for row := range w.m.Root().Intercepts {
		got++
		if row.Disposition != d || row.OwnerState != o {
			w.t.Fatalf("intercept %s is %v, owner %v; want %v, %v", row.Id, row.Disposition, row.OwnerState, d, o)
		}
	}
	if got != n {
		w.t.Fatalf("%d intercepts, want %d", got, n)
	}
}

// TestInterceptReplacedInOneStep lets an intercept go and come back under its
// id before its actor looks: the new one has a grace of its own.
func TestInterceptReplacedInOneStep(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		_, client, icept := s.active()
		s.attach("a", client, 0, 0)
		s.pass(time.Minute)
		s.wantIntercept(icept, dispActive, ownerAway, "the first one")
		s.apply(&commandv1.Command{Op: &commandv1.Command_RemoveIntercept{
			RemoveIntercept: &commandv1.RemoveIntercept{SessionId: client, Name: "web"},
		}}, createIntercept(client, "web", 0))
		s.pass(5*time.Second - 1)
		s.wantIntercept(icept, dispWaiting, ownerPresent, "the second one, within its grace")
		s.pass(1)
		s.wantIntercept(icept, dispWaiting, ownerAway, "after it")
		if got := s.leader.Stats().Intercepts; got != 1 {
			t.Errorf("%d intercept actors, want 1", got)
		}
	})
}
