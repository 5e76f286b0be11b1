package actors

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// late is how far past its deadline a session may be seen: the tick, and the
// moment that expiries are gathered.
const late = 2 * time.Second

// slowly makes a day of virtual time cheaper: a tick a minute.
func slowly(s *stage) {
	s.limits.Tick = time.Minute
	s.limits.PauseGap = 5 * time.Minute
}

func TestSessionsExpireAfterTheirPeriodAndNotBefore(t *testing.T) {
	for _, tc := range []struct {
		name   string
		arrive func(*world) string
		period time.Duration
	}{
		{"agent of the newer generation", func(w *world) string { return w.agent("p", newer) }, 70 * time.Second},
		{"agent of the older generation", func(w *world) string { return w.agent("p", older) }, 15 * time.Second},
		{"client", func(w *world) string { return w.client("c") }, 24 * time.Hour},
	} {
		run := func(how string, f func(t *testing.T, s *stage, late time.Duration)) {
			t.Run(tc.name+how, func(t *testing.T) {
				onStage(t, func(t *testing.T, s *stage) {
					if tc.period > time.Hour {
						slowly(s)
					}
					f(t, s, 2*s.limits.Tick)
				})
			})
		}
		run(" that was there", func(_ *testing.T, s *stage, late time.Duration) {
			id := tc.arrive(s.world)
			s.start()
			s.pass(tc.period)
			s.wantSession(id, true, "exactly at the horizon")
			s.pass(late)
			s.wantSession(id, false, "after it")
		})
		run(" that arrives", func(_ *testing.T, s *stage, late time.Duration) {
			s.start()
			s.pass(300 * time.Millisecond)
			id := tc.arrive(s.world)
			s.pass(tc.period)
			s.wantSession(id, true, "exactly at the horizon")
			s.pass(late)
			s.wantSession(id, false, "after it")
		})
		run(" that remains", func(t *testing.T, s *stage, late time.Duration) {
			id := tc.arrive(s.world)
			s.start()
			for range 5 {
				s.pass(tc.period)
				if !s.leader.Touch(id, time.Time{}) {
					t.Fatal("a Remain at the horizon was refused")
				}
			}
			s.pass(tc.period)
			s.wantSession(id, true, "a period after the last Remain")
			s.pass(late)
			s.wantSession(id, false, "later")
			if s.leader.Touch(id, time.Time{}) {
				t.Error("a Remain of an expired session was accepted")
			}
		})
	}
}

func TestAgentThatShowsItsAgeGetsTheShorterPeriod(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.start()
		id := s.agent("p", newer)
		s.pass(30 * time.Second)
		s.must(&commandv1.Command{Op: &commandv1.Command_SetGeneration{
			SetGeneration: &commandv1.SetGeneration{SessionId: id, Generation: older},
		}})
		s.pass(15 * time.Second)
		s.wantSession(id, true, "15 s after it showed itself")
		s.pass(late)
		s.wantSession(id, false, "later")
	})
}

func TestClientActivityCountsFromWhenItWas(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		s.pass(time.Second)
		idle, skewed := s.client("idle"), s.client("skewed")
		slowly(s)
		late := 2 * s.limits.Tick
		s.start()
		s.pass(10 * time.Hour)
		s.leader.Touch(idle, time.Now().Add(-4*time.Hour))
		s.leader.Touch(skewed, time.Now().Add(-1000*time.Hour)) // a clock that is wrong
		s.pass(20 * time.Hour)
		s.wantSession(idle, true, "24 h after the last activity")
		s.pass(late)
		s.wantSession(idle, false, "later")
		s.pass(4*time.Hour - late)
		s.wantSession(skewed, true, "24 h after the Remain")
		s.pass(late)
		s.wantSession(skewed, false, "later")
	})
}

func TestEveryFailoverGivesAFullPeriod(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		ids := []string{s.agent("new", newer), s.agent("old", older), s.client("c")}
		s.start()
		for range 20 {
			s.pass(14 * time.Second) // never a whole period of anybody
			s.failover()
		}
		for _, id := range ids {
			s.wantSession(id, true, "280 s without a Remain, through 20 leaders")
		}
		s.pass(15 * time.Second)
		s.wantSession(ids[1], true, "at the older agent's horizon")
		s.pass(late)
		s.wantSession(ids[1], false, "after it")
		s.pass(55*time.Second - late)
		s.wantSession(ids[0], true, "at the newer agent's horizon")
		s.pass(late)
		s.wantSession(ids[0], false, "after it")
		s.wantSession(ids[2], true, "a client has a day")
	})
}

func TestPeerThatEndsItsStreamsHas15Seconds(t *testing.T) {
	for _, tc := range []struct {
		name string
		then func(s *stage, id string) // 10 s after the end
		ends bool                      // 17 s after the end
	}{
		{"and stays away", func(*stage, string) {}, true},
		{"and comes back", func(s *stage, id string) { s.attach("b", id, 0, 1) }, false},
		{"and arrives anew", func(s *stage, _ string) { s.must(arriveAgent("p", 9000)) }, false},
		{"and sends Remain", func(s *stage, id string) { s.leader.Touch(id, time.Time{}) }, false},
		{"and its server dies", func(s *stage, _ string) { s.leader.DropServer("a") }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				s.start()
				id := s.agent("p", newer)
				s.attach("a", id, 1, 3)
				s.pass(5 * time.Second)
				s.endedByPeer("a", id)
				s.pass(10 * time.Second)
				tc.then(s, id)
				s.pass(5 * time.Second)
				s.wantSession(id, true, "15 s after the end")
				s.pass(late)
				s.wantSession(id, !tc.ends, "17 s after the end")
			})
		})
	}
}

func TestServersNeverShortenAnybodysTime(t *testing.T) {
	for _, tc := range []struct {
		name string
		lose func(s *stage, id string)
	}{
		{"the server dies", func(s *stage, _ string) { s.leader.DropServer("a") }},
		{"the server starts again", func(s *stage, _ string) { s.leader.SetAttachments("a", "next-boot", true, nil) }},
		{"the server closes the streams", func(s *stage, id string) { s.attach("a", id, 0, 0) }},
		{"the server no longer names them", func(s *stage, _ string) { s.leader.SetAttachments("a", "a-boot", true, nil) }},
		{"ended at one server while the other holds on, which dies", func(s *stage, id string) {
			s.attach("b", id, 0, 1)
			s.endedByPeer("a", id)
			s.leader.DropServer("b")
		}},
		{"an end that the server tells of after it was lost", func(s *stage, id string) {
			s.leader.DropServer("a")
			s.leader.SetAttachments("a", "a-boot", true, []Attachment{{SessionID: id, EndedByPeer: true}})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				s.start()
				id := s.agent("p", newer)
				s.attach("a", id, 1, 3)
				tc.lose(s, id)
				s.pass(70 * time.Second)
				s.wantSession(id, true, "at the horizon")
				s.pass(late)
				s.wantSession(id, false, "after it")
			})
		})
	}
}

func TestEndAfterAFailoverLeavesTheFullPeriod(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.start()
		s.attach("a", id, 0, 1)
		s.endedByPeer("a", id)
		s.pass(70 * time.Second)
		s.wantSession(id, true, "a full period after the failover")
		s.pass(late)
		s.wantSession(id, false, "later")
	})
}

func TestNothingExpiresWithoutAQuorum(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.onConfirm = func() error { return errors.New("no quorum") }
		s.start()
		s.pass(10 * time.Minute)
		s.wantSession(id, true, "while nobody confirms the leader")
		if n := s.sent(isExpire); n != 0 {
			t.Errorf("%d expiries proposed", n)
		}
		s.set(func() { s.onConfirm = nil })
		s.pass(10 * time.Second)
		s.wantSession(id, false, "with a quorum again")
	})
}

func TestRemainDuringTheConfirmationSaves(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.start()
		leader := s.leader
		s.set(func() {
			s.onConfirm = func() error {
				leader.Touch(id, time.Time{})
				return nil
			}
		})
		s.pass(75 * time.Second)
		s.wantSession(id, true, "Remain while the quorum was asked")
		if n := s.sent(isExpire); n != 0 {
			t.Errorf("%d expiries proposed", n)
		}
		if got := s.leader.Stats().ExpiriesDropped; got != 1 {
			t.Errorf("%d expiries dropped, want 1", got)
		}
		s.set(func() { s.onConfirm = nil })
		s.pass(70 * time.Second)
		s.wantSession(id, false, "silent again")
	})
}

func TestExpiryWithUnknownOutcomeIsTriedAgain(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault fault
		sent  int
	}{
		{"not applied", lost, 2},
		{"applied", lateAnswer, 1},
		{"no answer", hang, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onStage(t, func(t *testing.T, s *stage) {
				id := s.agent("p", newer)
				first := true
				s.onPropose = func(*commandv1.Command) fault {
					if !first {
						return none
					}
					first = false
					return tc.fault
				}
				s.start()
				s.pass(90 * time.Second)
				s.wantSession(id, false, "in the end")
				if n := s.sent(isExpire); n != tc.sent {
					t.Errorf("%d expiries proposed, want %d", n, tc.sent)
				}
				if got := s.leader.Stats(); got.AwakeSessions != 0 || got.Agents != 0 {
					t.Errorf("%d awake, %d agents left", got.AwakeSessions, got.Agents)
				}
			})
		})
	}
}

func TestSilenceOfAWholeSiteExpiresInBatches(t *testing.T) {
	const n = 3*maxAwakeSessions + 100
	onStage(t, func(t *testing.T, s *stage) {
		var cmds []*commandv1.Command
		for i := range n {
			cmds = append(cmds, arriveAgent(sessionName(i), 1))
		}
		s.apply(cmds...)
		s.start()
		s.pass(70 * time.Second)
		if got := s.m.Root().Len(fsm.TableSessions); got != n {
			t.Fatalf("%d sessions at the horizon, want %d", got, n)
		}
		s.pass(20 * time.Second)
		if got := s.m.Root().Len(fsm.TableSessions); got != 0 {
			t.Fatalf("%d sessions left", got)
		}
		stats := s.leader.Stats()
		if stats.Expired != n || stats.Agents != 0 || stats.AwakeSessions != 0 {
			t.Errorf("expired %d, agents %d, awake %d", stats.Expired, stats.Agents, stats.AwakeSessions)
		}
		if got, least := s.sent(isExpire), n/maxExpiries; got > 2*least {
			t.Errorf("%d commands for %d sessions", got, n)
		}
	})
}

func TestPauseOfTheLeaderMovesAllDeadlines(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		agent, client := s.agent("p", newer), s.client("c")
		s.start()
		s.attach("a", client, 1, 0)
		icept := s.intercept(client, "web", 0)
		s.pass(60 * time.Second)
		s.review(agent, icept)
		s.attach("a", client, 0, 0)
		s.pass(4 * time.Second)
		s.leader.clock.skip(time.Hour)
		if n := s.leader.clock.now(); n > at(64) {
			t.Errorf("leader time went on to %v", n)
		}
		s.pass(1500 * time.Millisecond)
		s.wantSession(agent, true, "right after the pause")
		s.wantIntercept(icept, dispActive, ownerPresent, "right after the pause")
		s.pass(1500 * time.Millisecond)
		s.wantSession(agent, true, "67 s without a Remain, the pause not counted")
		s.wantIntercept(icept, dispActive, ownerAway, "7 s without its owner")
		s.pass(10 * time.Second)
		s.wantSession(agent, false, "77 s without a Remain")
		if got := s.leader.Stats(); got.Pauses != 1 || got.Paused < time.Hour {
			t.Errorf("pauses %d, paused %v", got.Pauses, got.Paused)
		}
	})
}

func TestTouchBeforeTheSessionWasLoadedCounts(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.start()
		s.leader.sessions.remove(id) // as if the projector had not come to it
		s.pass(5 * time.Second)
		if !s.leader.Touch(id, time.Time{}) {
			t.Fatal("a session of the state is unknown")
		}
		s.pass(70 * time.Second)
		s.wantSession(id, true, "a period after the Remain")
		if s.leader.Touch("nobody", time.Time{}) {
			t.Error("a session that nobody knows was touched")
		}
	})
}

func TestSessionComesBackUnderItsID(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.start()
		s.pass(60 * time.Second)
		s.depart(id)
		s.agent("p", newer)
		synctest.Wait()
		s.pass(70 * time.Second)
		s.wantSession(id, true, "a period after it came back")
		s.pass(late)
		s.wantSession(id, false, "later")
	})
}

// TestSessionReplacedInOneStep lets a session go and come back under its id
// before anybody looks: it is not the one that was there at the start.
func TestSessionReplacedInOneStep(t *testing.T) {
	onStage(t, func(t *testing.T, s *stage) {
		id := s.agent("p", newer)
		s.start()
		s.pass(time.Second)
		s.apply(&commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: id}}},
			arriveAgent("p", 9000))
		s.attach("a", id, 0, 1)
		s.endedByPeer("a", id)
		s.pass(15 * time.Second)
		s.wantSession(id, true, "15 s after its end")
		s.pass(late)
		s.wantSession(id, false, "later: the first period was owed to another")
		if got := s.leader.Stats().Agents; got != 0 {
			t.Errorf("%d agents left", got)
		}
	})
}
