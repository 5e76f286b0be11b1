package membership

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"trivet/cluster/replica"
	"trivet/internal/errs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a cluster that the test plays; "a" leads.
type world struct {
	*Manager
	members  []replica.Member
	names    map[string]string
	dead     map[string]bool
	behind   map[string]bool
	leads    bool
	history  []string
	failNext error
}

func newWorld(ids ...string) *world {
	w := &world{names: make(map[string]string), dead: make(map[string]bool), behind: make(map[string]bool), leads: true}
	for _, id := range ids {
		w.members = append(w.members, replica.Member{ID: id, Address: "addr-" + id, Voter: true})
		w.names[id] = "name-" + id
	}
	w.Manager = New(w, w, slog.New(slog.DiscardHandler))
	return w
}

func (w *world) ID() string { return "a" }

func (w *world) LeaderTerm() uint64 {
	if w.leads {
		return 1
	}
	return 0
}

func (w *world) Members() ([]replica.Member, uint64, error) {
	return slices.Clone(w.members), uint64(len(w.history)), nil
}

func (w *world) change(what string, after uint64, f func()) error {
	if err := w.failNext; err != nil {
		w.failNext = nil
		return err
	}
	if after != uint64(len(w.history)) {
		return replica.ErrMembershipChanged
	}
	w.history = append(w.history, what)
	f()
	return nil
}

func (w *world) AddNonvoter(_ context.Context, id, address string, after uint64) error {
	return w.change("add "+id, after, func() { w.members = append(w.members, replica.Member{ID: id, Address: address}) })
}

func (w *world) AddVoter(_ context.Context, id, _ string, after uint64) error {
	return w.change("vote "+id, after, func() { find(w.members, id).Voter = true })
}

func (w *world) RemoveMember(_ context.Context, id string, after uint64) error {
	return w.change("remove "+id, after, func() {
		w.members = slices.DeleteFunc(w.members, func(m replica.Member) bool { return m.ID == id })
	})
}

func (w *world) TransferLeadership(string, string) error { w.leads = false; return nil }

func (w *world) Name(id string) string { return w.names[id] }
func (w *world) Alive(_ context.Context, id, _ string) error {
	if w.dead[id] {
		return errors.New("it does not answer")
	}
	return nil
}

func (w *world) Reached(_ context.Context, id, _ string, _ uint64) (bool, error) {
	return !w.behind[id], nil
}
func (w *world) Revision() uint64                { return 1 }
func (w *world) CommandVersion() uint32          { return 2 }
func (w *world) Removed(context.Context, string) {}

var newcomer = Server{ID: "n", Name: "name-n", Address: "addr-n", CommandVersion: 2}

func TestJoinAddsThenVotesThenReplaces(t *testing.T) {
	for name, tc := range map[string]struct {
		server   Server
		replaces string
		want     []string
	}{
		"a fourth":                   {server: newcomer, want: []string{"add n", "vote n"}},
		"in the place of a dead one": {server: newcomer, replaces: "c", want: []string{"add n", "remove c", "vote n"}},
		"at the same address": {
			server: Server{ID: "n", Name: "name-c", Address: "addr-c", CommandVersion: 2}, replaces: "c",
			want: []string{"remove c", "add n", "vote n"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("a", "b", "c")
			w.dead["c"] = tc.replaces == "c"
			for range 2 { // again: nothing more to do
				if err := w.Join(t.Context(), tc.server, tc.replaces); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(w.history, tc.want) {
					t.Fatalf("changes %v, want %v", w.history, tc.want)
				}
			}
		})
	}
}

func TestJoinRefuses(t *testing.T) {
	for want, tc := range map[string]struct {
		change   func(w *world, s *Server)
		replaces string
	}{
		"SERVER_EXISTS":    {change: func(_ *world, s *Server) { s.Name = "name-b" }},
		"VERSION_TOO_OLD":  {change: func(_ *world, s *Server) { s.CommandVersion = 1 }},
		"SERVER_ALIVE":     {replaces: "c"},
		"QUORUM_AT_RISK":   {change: func(w *world, _ *Server) { w.dead["b"], w.dead["c"] = true, true }},
		"TOO_MANY_SERVERS": {change: func(w *world, _ *Server) { *w = *newWorld("a", "b", "c", "d", "e") }},
	} {
		t.Run(want, func(t *testing.T) {
			w, s := newWorld("a", "b", "c"), newcomer
			if tc.change != nil {
				tc.change(w, &s)
			}
			if err := w.Manager.Join(t.Context(), s, tc.replaces); errs.Reason(err) != want {
				t.Errorf("got %v", err)
			}
			if slices.Contains(w.history, "vote n") {
				t.Errorf("changes %v", w.history)
			}
		})
	}
}

func TestRemove(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.dead["c"] = true
	if err := w.Remove(t.Context(), "b", false); errs.Reason(err) != "QUORUM_AT_RISK" {
		t.Errorf("one of the last two: %v", err)
	}
	if err := w.Remove(t.Context(), "x", false); errs.Reason(err) != "SERVER_NOT_FOUND" {
		t.Errorf("an unknown one: %v", err)
	}
	if err := w.Remove(t.Context(), "b", true); err != nil || len(w.members) != 2 {
		t.Errorf("by force: %v, %v", err, w.members)
	}
	w = newWorld("a", "b", "c")
	if err := w.Remove(t.Context(), "a", false); !errors.Is(err, replica.ErrNotLeader) || w.leads || len(w.history) != 0 {
		t.Errorf("the leader: %v, leads %v, changes %v", err, w.leads, w.history)
	}
	w = newWorld("a")
	if err := w.Remove(t.Context(), "a", true); errs.Reason(err) != "LAST_SERVER" {
		t.Errorf("the last: %v", err)
	}
}

// TestInterruptedJoinIsCompleted: the leader that added the server died before
// it could give it a vote.
func TestInterruptedJoinIsCompleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b", "c")
		w.members = append(w.members, replica.Member{ID: "n", Address: "addr-n"})
		ctx, cancel := context.WithTimeout(t.Context(), 3*promoteEvery)
		defer cancel()
		w.Run(ctx)
		if !slices.Equal(w.history, []string{"vote n"}) {
			t.Errorf("changes %v", w.history)
		}
	})
}

func TestServerThatDoesNotCatchUpGetsNoVote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld("a", "b", "c")
		w.behind["n"] = true
		if err := w.Join(t.Context(), newcomer, ""); errs.Reason(err) != "NOT_CAUGHT_UP" {
			t.Errorf("got %v", err)
		}
		if !slices.Equal(w.history, []string{"add n"}) {
			t.Errorf("changes %v", w.history)
		}
	})
}
