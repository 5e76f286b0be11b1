package integrity

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"trivet/fsm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a monitor "a" whose peers the test plays.
type rig struct {
	*Monitor
	own     history
	voters  []string
	answers map[string]Answer
	leads   bool
	healed  []string
	healErr map[string]error
	onHeal  func()
}

func newRig() *rig {
	r := &rig{voters: []string{"a", "b", "c"}, answers: make(map[string]Answer), healErr: make(map[string]error)}
	r.Monitor = New(Config{
		Self: "a", History: &r.own, Peers: r, Logger: slog.New(slog.DiscardHandler),
		Leads: func() bool { return r.leads }, StepDown: func() error { r.leads = false; return nil },
		Heal: func(_ context.Context, from string) error {
			r.healed = append(r.healed, from)
			if r.onHeal != nil {
				r.onHeal()
			}
			return r.healErr[from]
		},
	})
	return r
}

// history is one digest.
type history struct{ at fsm.DigestAt }

func (h *history) Digests(uint64) []fsm.DigestAt { return []fsm.DigestAt{h.at} }
func (h *history) Root() *fsm.Root               { return fsm.New(fsm.Options{}).Root() }

func (r *rig) Voters() []string { return r.voters }
func (r *rig) Digests(_ context.Context, id string, _ uint64) (Answer, error) {
	a, ok := r.answers[id]
	if !ok {
		return a, errors.New("it does not answer")
	}
	return a, nil
}

// say makes a voter answer with a digest.
func (r *rig) say(id string, revision uint64, digest byte) {
	r.answers[id] = Answer{ID: id, Schema: fsm.SchemaVersion, Digests: []fsm.DigestAt{{Revision: revision, Digest: [32]byte{digest}}}}
}

func TestTheMajorityIsRight(t *testing.T) {
	for name, tc := range map[string]struct {
		b, c               byte // digests; 0: no answer
		diverged, disputed bool
	}{
		"all equal":                  {b: 1, c: 1},
		"one down":                   {b: 1},
		"another is odd":             {b: 1, c: 2},
		"this one is odd":            {b: 2, c: 2, diverged: true},
		"no majority":                {b: 2, c: 3, disputed: true},
		"one answers, with another":  {b: 2, disputed: true},
		"nobody answers, no verdict": {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig()
			r.own.at = fsm.DigestAt{Revision: 10, Digest: [32]byte{1}}
			if tc.b != 0 {
				r.say("b", 10, tc.b)
			}
			if tc.c != 0 {
				r.say("c", 10, tc.c)
			}
			r.Compare(t.Context())
			if s := r.Status(); s.Diverged != tc.diverged || s.Disputed != tc.disputed || r.Diverged() != tc.diverged {
				t.Errorf("status %+v", s)
			}
			if got := len(r.healed) > 0; got != tc.diverged {
				t.Errorf("healed from %v", r.healed)
			}
		})
	}
}

func TestOnlyEqualRevisionsAndSchemasAreCompared(t *testing.T) {
	r := newRig()
	r.own.at = fsm.DigestAt{Revision: 10, Digest: [32]byte{1}}
	r.say("b", 11, 2)
	r.say("c", 10, 2)
	c := r.answers["c"]
	c.Schema++
	r.answers["c"] = c
	r.Compare(t.Context())
	if s := r.Status(); s.Diverged || s.Disputed {
		t.Errorf("status %+v", s)
	}
}

func TestOddServerHealsAndServesAgain(t *testing.T) {
	r := newRig()
	r.leads = true
	r.own.at = fsm.DigestAt{Revision: 10, Digest: [32]byte{1}}
	r.say("b", 10, 2)
	r.say("c", 10, 2)
	for _, id := range []string{"b", "c"} {
		if r.healErr[id] = errors.New("it is busy"); id == "c" {
			r.healErr[id] = nil
		}
	}
	r.onHeal = func() {
		if r.leads {
			t.Error("it takes a state over while it leads")
		}
		r.own.at.Digest = [32]byte{2}
	}
	r.Compare(t.Context())
	if !r.Diverged() || !slices.Contains(r.healed, "c") {
		t.Fatalf("diverged %v, healed from %v", r.Diverged(), r.healed)
	}
	r.Compare(t.Context())
	if r.Diverged() || r.Status().Compared != 10 {
		t.Errorf("after healing: %+v", r.Status())
	}
	if mismatches, healed := r.Counts(); mismatches != 1 || healed != 1 {
		t.Errorf("%d mismatches, %d healed", mismatches, healed)
	}
}
