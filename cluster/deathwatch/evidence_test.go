package deathwatch

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

const (
	idA   = "aaaaaaaa-0000-4000-8000-000000000000"
	bootA = "aaaaaaaa-0000-4000-8000-000000000001"
	bootB = "aaaaaaaa-0000-4000-8000-000000000002"
)

// TestCutThatOnlyOneServerSeesElectsNobody: the connection between one follower
// and the leader is reset and its redial refused, as a firewall can do.
func TestCutThatOnlyOneServerSeesElectsNobody(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.blind["c"] = true
		r.kill("addr-a")
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.elected() != 0 || r.Lonely() != 1 || r.told["c"] != 1 {
			t.Fatalf("%d elections, %d times alone, c was told %d times; want none, once, once", r.elected(), r.Lonely(), r.told["c"])
		}
		// The leader dies in earnest: c says so and hears that b has no leader.
		got := r.Hear(t.Context(), Evidence{From: "c", Leader: "a", Seen: true})
		if !got.Seen || got.From != "b" {
			t.Errorf("b answers %+v, want that it saw the end", got)
		}
	})
}

func TestEvidenceIsWithdrawnWhenTheLeaderIsSeenAgain(t *testing.T) {
	inBubble(t, idB, func(t *testing.T, r *rig) {
		r.blind["c"] = true
		r.lead(idA)
		r.Reconcile(r.ctx, []Server{{idA, "addr-a"}, {idB, "addr-b"}, {"c", "addr-c"}})
		synctest.Wait()
		r.greet(t, idA, bootA)
		r.kill("addr-a")
		time.Sleep(agreeWithin)
		r.revive("addr-a")
		time.Sleep(2 * retryMax)
		synctest.Wait()
		r.greet(t, idA, bootA)
		synctest.Wait()
		if got := r.Hear(t.Context(), Evidence{From: "c", Leader: idA, Seen: true}); got.Seen {
			t.Error("it still says that it saw the end of a leader that it sees")
		}
		// What c said meanwhile does not count for ever.
		time.Sleep(freshFor)
		r.kill("addr-a")
		time.Sleep(time.Minute)
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections on evidence that is old", n)
		}
	})
}

// TestQuickRestartOfTheLeaderIsItsEnd: the port is open again before the redial,
// but by another process.
func TestQuickRestartOfTheLeaderIsItsEnd(t *testing.T) {
	for name, second := range map[string][2]string{"restarted": {idA, bootB}, "wiped": {idB, bootB}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "b", func(t *testing.T, r *rig) {
				r.lead(idA)
				r.Reconcile(r.ctx, []Server{{idA, "addr-a"}, {"b", "addr-b"}, {"c", "addr-c"}})
				synctest.Wait()
				r.greet(t, idA, bootA)
				r.cut("addr-a")
				time.Sleep(retryMax)
				synctest.Wait()
				if r.elected() != 0 {
					t.Fatal("an election because of a connection alone")
				}
				r.greet(t, second[0], second[1])
				synctest.Wait()
				if n := r.elected(); n != 1 {
					t.Errorf("%d elections, want 1", n)
				}
			})
		})
	}
}

const idB = "bbbbbbbb-0000-4000-8000-000000000000"

// greet speaks for the process that accepted the newest connection to a.
func (r *rig) greet(t *testing.T, id, boot string) {
	t.Helper()
	r.mu.Lock()
	all := r.conns["addr-a"]
	if len(all) == 0 {
		r.mu.Unlock()
		t.Fatal("nobody is connected")
	}
	conn := all[len(all)-1]
	r.mu.Unlock()
	if _, err := io.WriteString(conn, id+boot+"\n"); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func TestTheBestLogGoesFirst(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.last["b"], r.last["c"] = 10, 11
		begin := time.Now()
		r.kill("addr-a")
		time.Sleep(time.Second)
		synctest.Wait()
		if len(r.elects) != 1 || r.elects[0].Sub(begin) != rankDelay {
			t.Errorf("elections at %v after %v, want one after %s: c has the better log", r.elects, begin, rankDelay)
		}
	})
}

func TestLateWitnessIsWaitedFor(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.blind["c"] = true
		begin := time.Now()
		r.kill("addr-a")
		time.Sleep(300 * time.Millisecond)
		r.Hear(t.Context(), Evidence{From: "c", Leader: "a", Seen: true})
		synctest.Wait()
		if len(r.elects) != 1 || r.elects[0].Sub(begin) != 300*time.Millisecond {
			t.Errorf("elections at %v after %v, want one when c had seen it too", r.elects, begin)
		}
	})
}

func TestHearOfAnotherMatterAnswersAtOnce(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		begin := time.Now()
		for _, e := range []Evidence{{From: "c", Leader: "x", Seen: true}, {From: "c", Leader: "a", Term: 7, Seen: true}} {
			if got := r.Hear(t.Context(), e); got.Seen || time.Since(begin) > 0 {
				t.Errorf("%+v after %s", got, time.Since(begin))
			}
		}
	})
}

func TestServerThatMayNotLeadLeavesTheElectionToOthers(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.cfg.MayLead = func() bool { return false }
		r.kill("addr-a")
		time.Sleep(time.Minute)
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections", n)
		}
	})
}

func TestOldInquiriesAreForgotten(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		for term := range uint64(20) {
			r.record(matter{"a", term}, Evidence{From: "c"})
		}
		if n := len(r.cases); n != casesKept {
			t.Errorf("%d inquiries are kept, want %d", n, casesKept)
		}
	})
}
