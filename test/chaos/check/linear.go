package check

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Linear is what Linearizable found.
type Linear struct {
	// Keys and Ops that were judged.
	Keys, Ops int
	// Unchecked lists the keys that took longer than the limit.
	Unchecked  []string
	Violations []Violation
}

// Linearizable searches, key by key, for an order of the operations that a
// register could have seen. Stale reads and failed operations take no part;
// writes with an unknown outcome may take effect at any time after their call,
// or never. A key that takes longer than limit counts as unchecked.
func Linearizable(ops []Op, limit time.Duration) Linear {
	byKey := make(map[string][]porcupine.Operation)
	for _, o := range ops {
		if o.Kind == Stale || o.Result == Failed || o.Kind == Get && o.Result != OK {
			continue
		}
		end := o.Return
		if o.Result == Unknown {
			end = Never
		}
		byKey[o.Key] = append(byKey[o.Key], porcupine.Operation{ClientId: o.Client, Input: o, Output: o, Call: o.Call, Return: end})
	}
	out := Linear{Keys: len(byKey)}
	r := report{checker: "linearizable"}
	for _, key := range sorted(byKey) {
		history := byKey[key]
		out.Ops += len(history)
		switch result, info := porcupine.CheckOperationsVerbose(register, history, limit); result {
		case porcupine.Unknown:
			out.Unchecked = append(out.Unchecked, key)
		case porcupine.Illegal:
			r.add("key %s: %d operations fit no order of a register; %s", key, len(history), stuckAt(info, history))
		}
	}
	out.Violations = r.violations()
	return out
}

// register is the model: its state is the value, "" for an absent one.
var register = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, o := state.(string), input.(Op)
		switch {
		case o.Kind == Get:
			return o.Value == value, state
		case o.Kind == Put:
			return true, o.Value
		case o.Result == Conflict:
			return o.Expect != value, state
		case o.Expect == value:
			return true, o.Value
		}
		// A compare-and-set that met another value: acknowledged it cannot be,
		// without an answer it has just not happened.
		return o.Result == Unknown, state
	},
	DescribeOperation: func(input, _ any) string { return describe(input.(Op)) },
}

func describe(o Op) string {
	s := fmt.Sprintf("client %d at server %d: %s %s", o.Client, o.Server, o.Kind, quote(o.Value))
	if o.Kind == CAS {
		s += fmt.Sprintf(" if %s@%d", quote(o.Expect), o.IfRev)
	}
	return fmt.Sprintf("%s = %s@%d [%s, %s]", s, o.Result, o.Rev, millis(o.Call), millis(o.Return))
}

func quote(v string) string {
	if v == "" {
		return "(absent)"
	}
	return v
}

func millis(ns int64) string {
	if ns == Never {
		return "never"
	}
	return fmt.Sprintf("%.3f ms", float64(ns)/1e6)
}

// stuckAt shows the first operations that the longest order found leaves out.
func stuckAt(info porcupine.LinearizationInfo, history []porcupine.Operation) string {
	var longest []porcupine.Operation
	for _, part := range info.PartialLinearizationsOperations() {
		for _, order := range part {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	placed := make(map[Op]bool, len(longest))
	for _, o := range longest {
		placed[o.Input.(Op)] = true
	}
	var left []Op
	for _, o := range history {
		if op := o.Input.(Op); !placed[op] {
			left = append(left, op)
		}
	}
	slices.SortFunc(left, func(a, b Op) int { return cmp.Compare(a.Call, b.Call) })
	const show = 3
	var lines []string
	if n := len(longest); n > 0 {
		lines = append(lines, "the longest order ends with "+describe(longest[n-1].Input.(Op)))
	}
	for _, o := range left[:min(show, len(left))] {
		lines = append(lines, "no place for "+describe(o))
	}
	return strings.Join(lines, "; ")
}

func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
