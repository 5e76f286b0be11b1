package check_test

import (
	"strings"
	"testing"
	"time"

	"trivet/test/chaos/check"
)

// want holds a verdict together with what a planted violation must say; no
// text means that the history is clean.
func want(t *testing.T, got []check.Violation, text string) {
	t.Helper()
	switch {
	case text == "" && len(got) > 0:
		t.Errorf("a clean history was found wrong: %v", got)
	case text != "" && len(got) == 0:
		t.Errorf("nothing was found, want something about %q", text)
	case text != "" && !strings.Contains(got[0].String(), text):
		t.Errorf("found %q, want something about %q", got[0], text)
	}
}

// op makes an operation from one instant to another.
func op(kind check.Kind, value string, from, to int64) check.Op {
	return check.Op{Kind: kind, Key: "k", Value: value, Call: from, Return: to, Result: check.OK}
}

func cas(expect, value string, result check.Outcome, from, to int64) check.Op {
	o := op(check.CAS, value, from, to)
	o.Expect, o.Result = expect, result
	return o
}

func unknown(o check.Op) check.Op {
	o.Result, o.Return = check.Unknown, check.Never
	return o
}

func TestLinearizable(t *testing.T) {
	for name, x := range map[string]struct {
		ops  []check.Op
		want string
	}{
		"clean": {ops: []check.Op{
			op(check.Get, "", 0, 1), op(check.Put, "a", 2, 5), op(check.Get, "a", 3, 4),
			cas("a", "b", check.OK, 6, 8), cas("a", "c", check.Conflict, 7, 9), op(check.Get, "b", 10, 11),
		}},
		"stale read":                       {ops: []check.Op{op(check.Put, "a", 0, 1), op(check.Put, "b", 2, 3), op(check.Get, "a", 4, 5)}, want: "no order"},
		"a lost write":                     {ops: []check.Op{op(check.Put, "a", 0, 1), op(check.Get, "", 2, 3)}, want: "no order"},
		"a write applied twice":            {ops: []check.Op{op(check.Put, "a", 0, 1), op(check.Put, "b", 2, 3), op(check.Get, "b", 4, 5), op(check.Get, "a", 6, 7)}, want: "no order"},
		"two winners":                      {ops: []check.Op{op(check.Put, "a", 0, 1), cas("a", "b", check.OK, 2, 3), cas("a", "c", check.OK, 4, 5)}, want: "no order"},
		"a winner told that it lost":       {ops: []check.Op{op(check.Put, "a", 0, 1), cas("a", "b", check.Conflict, 2, 3), op(check.Get, "b", 4, 5)}, want: "no order"},
		"an unknown write took effect":     {ops: []check.Op{unknown(op(check.Put, "a", 0, 0)), op(check.Get, "", 1, 2), op(check.Get, "a", 100, 101)}},
		"an unknown write did not":         {ops: []check.Op{unknown(op(check.Put, "a", 0, 0)), op(check.Get, "", 100, 101)}},
		"an unknown write came and went":   {ops: []check.Op{unknown(op(check.Put, "a", 0, 0)), op(check.Get, "a", 1, 2), op(check.Get, "", 3, 4)}, want: "no order"},
		"an unknown compare-and-set":       {ops: []check.Op{op(check.Put, "a", 0, 1), unknown(cas("x", "b", check.Unknown, 2, 0)), op(check.Get, "a", 3, 4)}},
		"a failed one that took effect":    {ops: []check.Op{{Kind: check.Put, Key: "k", Value: "a", Result: check.Failed}, op(check.Get, "a", 1, 2)}, want: "no order"},
		"reads without an answer are free": {ops: []check.Op{op(check.Put, "a", 0, 1), unknown(op(check.Get, "x", 2, 0))}},
		"stale reads are free":             {ops: []check.Op{op(check.Put, "a", 0, 1), op(check.Stale, "", 2, 3)}},
	} {
		t.Run(name, func(t *testing.T) {
			got := check.Linearizable(x.ops, time.Minute)
			want(t, got.Violations, x.want)
			if len(got.Unchecked) > 0 || got.Keys != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestLinearizableSaysWhatItDidNotCheck gives it a key that no search ends on
// in time.
func TestLinearizableSaysWhatItDidNotCheck(t *testing.T) {
	var ops []check.Op
	for i := range 40 {
		ops = append(ops, unknown(op(check.Put, strings.Repeat("x", i+1), 0, 0)))
		ops = append(ops, op(check.Get, strings.Repeat("x", 40-i), 1, 2))
	}
	ops = append(ops, op(check.Get, "nobody's", 3, 4))
	got := check.Linearizable(ops, time.Millisecond)
	if len(got.Unchecked) != 1 {
		t.Errorf("%d keys unchecked, %d violations", len(got.Unchecked), len(got.Violations))
	}
}

func rev(o check.Op, rev, state uint64) check.Op {
	o.Rev, o.State = rev, state
	return o
}

func TestRevisions(t *testing.T) {
	w := func(v string, r uint64) check.Op { return rev(op(check.Put, v, 0, 1), r, 0) }
	read := func(v string, r, s uint64) check.Op { return rev(op(check.Stale, v, 0, 1), r, s) }
	for name, x := range map[string]struct {
		ops  []check.Op
		want string
	}{
		"clean":                        {ops: []check.Op{w("a", 3), w("b", 7), read("", 0, 2), read("a", 3, 3), read("a", 3, 6), read("b", 7, 9)}},
		"two values of one revision":   {ops: []check.Op{w("a", 3), read("b", 3, 9)}, want: "is a and b"},
		"a state without its write":    {ops: []check.Op{w("a", 3), w("b", 7), read("a", 3, 8)}, want: "revision 7 wrote b"},
		"a state without its first":    {ops: []check.Op{w("a", 3), read("", 0, 4)}, want: "revision 3 wrote a"},
		"a row newer than its state":   {ops: []check.Op{w("a", 3), read("a", 3, 2)}, want: "newer than the state"},
		"what a read alone has proven": {ops: []check.Op{read("a", 3, 4), read("", 0, 5)}, want: "revision 3 wrote a"},
	} {
		t.Run(name, func(t *testing.T) { want(t, check.Revisions(x.ops), x.want) })
	}
}

func TestWinners(t *testing.T) {
	a, b := cas("", "a", check.OK, 0, 1), cas("", "b", check.OK, 0, 1)
	a.IfRev, b.IfRev = 5, 5
	want(t, check.Winners([]check.Op{a, b}), "replaced revision 5")
	b.Result = check.Conflict
	want(t, check.Winners([]check.Op{a, b}), "")
	b.Result, b.IfRev = check.OK, 6
	want(t, check.Winners([]check.Op{a, b}), "")
}

func TestRepeats(t *testing.T) {
	want(t, check.Repeats([]check.Repeat{{Key: "k", First: 3, Second: 3}}), "")
	want(t, check.Repeats([]check.Repeat{{Key: "k", First: 3, Second: 4}}), "revision 3 and with revision 4")
	want(t, check.Repeats([]check.Repeat{{Key: "k", First: 3, Error: "conflict"}}), "was refused")
}

func TestLost(t *testing.T) {
	ops := []check.Op{rev(op(check.Put, "a", 0, 1), 3, 0), rev(op(check.Put, "b", 2, 3), 5, 0), unknown(op(check.Put, "c", 4, 0))}
	state := func(v string, r uint64) []check.State {
		return []check.State{{Server: 1, Rows: map[string]check.Row{"k": {Value: v, Rev: r}}}}
	}
	want(t, check.Lost(ops, state("b", 5)), "")
	want(t, check.Lost(ops, state("c", 9)), "")
	want(t, check.Lost(ops, state("a", 3)), "acknowledged was")
	want(t, check.Lost(ops, state("a", 5)), "acknowledged was")
	want(t, check.Lost(ops, state("d", 9)), "nobody wrote")
	want(t, check.Lost(ops, []check.State{{Server: 1}}), "acknowledged was")
}

func TestSame(t *testing.T) {
	a := check.State{Server: 0, Revision: 9, Schema: 1, Digest: "aa"}
	b := a
	b.Server = 1
	want(t, check.Same([]check.State{a, b}), "")
	b.Digest = "bb"
	want(t, check.Same([]check.State{a, b}), "with bb")
	b.Digest, b.Revision = "aa", 8
	want(t, check.Same([]check.State{a, b}), "revision 8")
}

func TestExpiry(t *testing.T) {
	life := func(gone int64, change func(*check.Life)) []check.Life {
		l := check.Life{ID: "s", Period: 100, Signs: []check.Span{{Call: 10, Return: 12}, {Call: 50, Return: 55}}}
		if gone > 0 {
			l.Gone = []int64{gone}
		}
		if change != nil {
			change(&l)
		}
		return []check.Life{l}
	}
	want(t, check.Expiry(life(0, nil)), "")
	want(t, check.Expiry(life(150, nil)), "")
	want(t, check.Expiry(life(149, nil)), "before the end of its period")
	want(t, check.Expiry(life(60, func(l *check.Life) { l.DepartCall = 58 })), "")
	want(t, check.Expiry(life(60, func(l *check.Life) { l.DepartCall = 61 })), "before the end of its period")
	want(t, check.Expiry(life(0, func(l *check.Life) {
		l.DepartCall, l.Departed = 56, 58
		l.Signs = append(l.Signs, check.Span{Call: 59 + int64(check.Lag), Return: 60 + int64(check.Lag)})
	})), "was alive")
	want(t, check.Expiry(life(0, func(l *check.Life) {
		l.DepartCall, l.Departed = 56, 58
		l.Signs = append(l.Signs, check.Span{Call: 59, Return: 60})
	})), "")
}
