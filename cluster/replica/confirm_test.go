package replica

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// council is a confirmer whose voters the test plays; "a" leads in term 5.
type council struct {
	*confirmer
	terms map[string]uint64 // answers; none: no answer
	own   uint64
	onAsk func()
}

func newCouncil(t *testing.T, voters ...string) *council {
	c := &council{terms: make(map[string]uint64), own: 5}
	c.confirmer = &confirmer{
		self: "a", term: func() uint64 { return c.own }, timeout: time.Second, pauses: newPauseDetector(time.Second),
		voters: func() ([]Voter, error) {
			var out []Voter
			for _, v := range voters {
				out = append(out, Voter{ID: v})
			}
			return out, nil
		},
		ask: func(ctx context.Context, v Voter) (uint64, error) {
			if c.onAsk != nil {
				c.onAsk()
			}
			term, ok := c.terms[v.ID]
			if !ok {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			return term, nil
		},
	}
	t.Cleanup(c.pauses.close)
	return c
}

func TestConfirmNeedsAQuorumOfTheVoters(t *testing.T) {
	for name, tc := range map[string]struct {
		voters []string
		terms  map[string]uint64
		own    uint64
		ok     bool
		why    error
	}{
		"alone":                          {voters: []string{"a"}, ok: true},
		"one of two others":              {voters: []string{"a", "b", "c"}, terms: map[string]uint64{"b": 5}, ok: true},
		"nobody answers":                 {voters: []string{"a", "b", "c"}, why: context.DeadlineExceeded},
		"one of four others":             {voters: []string{"a", "b", "c", "d", "e"}, terms: map[string]uint64{"b": 5}, why: context.DeadlineExceeded},
		"a later term":                   {voters: []string{"a", "b", "c"}, terms: map[string]uint64{"b": 6}, why: errDeposed},
		"voters that are behind":         {voters: []string{"a", "b", "c"}, terms: map[string]uint64{"b": 4, "c": 4}},
		"two others, this one no voter":  {voters: []string{"b", "c"}, terms: map[string]uint64{"b": 5, "c": 5}, ok: true},
		"one other, this one no voter":   {voters: []string{"b", "c"}, terms: map[string]uint64{"b": 5}, why: context.DeadlineExceeded},
		"this one has voted in the next": {voters: []string{"a", "b", "c"}, terms: map[string]uint64{"b": 5}, own: 6, why: errDeposed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCouncil(t, tc.voters...)
				c.terms = tc.terms
				if tc.own != 0 {
					c.own = tc.own
				}
				err := c.confirm(t.Context(), 5)
				if (err == nil) != tc.ok || tc.why != nil && !errors.Is(err, tc.why) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestRoundThatAPauseDisturbedIsAskedAgain: nobody can say how old its answers
// are.
func TestRoundThatAPauseDisturbedIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCouncil(t, "a", "b")
		c.terms["b"] = 5
		pauses := 2
		c.onAsk = func() {
			if pauses > 0 {
				pauses--
				c.pauses.count.Add(1)
			}
		}
		if err := c.confirm(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		if c.rounds.Load() != 3 || c.redone.Load() != 2 {
			t.Errorf("%d rounds, %d redone, want 3 and 2", c.rounds.Load(), c.redone.Load())
		}
		pauses = 100
		if err := c.confirm(t.Context(), 5); !errors.Is(err, errPaused) {
			t.Errorf("on a machine that starves: %v", err)
		}
	})
}

func TestPauseIsCountedOnce(t *testing.T) {
	p := &pauseDetector{limit: time.Minute, began: time.Now().Add(-time.Hour), stop: make(chan struct{})}
	if n := p.seen(); n != 1 {
		t.Errorf("after an hour: %d, want 1", n)
	}
	if n := p.seen(); n != 1 {
		t.Errorf("at once again: %d, want 1", n)
	}
}
