package check

import (
	"cmp"
	"slices"
)

// Revisions holds what was said about revisions together: a revision of a key
// means one value, whoever reads it, and a state that a server answered from,
// stale or not, shows each key as the newest write at or below the state's
// revision left it.
func Revisions(ops []Op) []Violation {
	r := report{checker: "revisions"}
	byKey := make(map[string][]write)
	seen := make(map[string]map[uint64]string)
	for _, o := range ops {
		if o.Result != OK || o.Rev == 0 {
			continue
		}
		if o.Kind == Get || o.Kind == Stale {
			if o.Value == "" {
				continue
			}
		}
		values := seen[o.Key]
		if values == nil {
			values = make(map[uint64]string)
			seen[o.Key] = values
		}
		if v, ok := values[o.Rev]; ok && v != o.Value {
			r.add("key %s at revision %d is %s and %s", o.Key, o.Rev, quote(v), quote(o.Value))
		}
		values[o.Rev] = o.Value
	}
	for key, values := range seen {
		for rev, value := range values {
			byKey[key] = append(byKey[key], write{rev, value})
		}
		slices.SortFunc(byKey[key], func(a, b write) int { return cmp.Compare(a.rev, b.rev) })
	}
	for _, o := range ops {
		if o.Result != OK || o.State == 0 || o.Kind != Get && o.Kind != Stale {
			continue
		}
		writes := byKey[o.Key]
		// The newest known write at or below the state.
		i, found := slices.BinarySearchFunc(writes, o.State, func(w write, rev uint64) int { return cmp.Compare(w.rev, rev) })
		if !found {
			i--
		}
		if o.Rev > o.State {
			r.add("%s: the row is newer than the state at revision %d", describeRead(o), o.State)
		}
		if i >= 0 && writes[i].rev > o.Rev {
			r.add("%s: revision %d wrote %s, at or below the state's revision %d", describeRead(o), writes[i].rev, quote(writes[i].value), o.State)
		}
	}
	return r.violations()
}

type write struct {
	rev   uint64
	value string
}

func describeRead(o Op) string { return "key " + o.Key + ", " + describe(o) }

// Winners allows at most one acknowledged compare-and-set per key and expected
// revision.
func Winners(ops []Op) []Violation {
	type at struct {
		key string
		rev uint64
	}
	r := report{checker: "one winner"}
	won := make(map[at]Op)
	for _, o := range ops {
		if o.Kind != CAS || o.Result != OK {
			continue
		}
		k := at{o.Key, o.IfRev}
		if first, ok := won[k]; ok && first.Value != o.Value {
			r.add("key %s: both %s and %s replaced revision %d", o.Key, describe(first), describe(o), o.IfRev)
		}
		won[k] = o
	}
	return r.violations()
}

// Repeats wants the same answer for the same request number.
func Repeats(repeats []Repeat) []Violation {
	r := report{checker: "exactly once"}
	for _, x := range repeats {
		switch {
		case x.Error != "":
			r.add("key %s: the write of revision %d was refused when it was repeated: %s", x.Key, x.First, x.Error)
		case x.First != x.Second:
			r.add("key %s: one request number was answered with revision %d and with revision %d", x.Key, x.First, x.Second)
		}
	}
	return r.violations()
}

// Row is what a server holds under a key at the end.
type Row struct {
	Value string `json:"value"`
	Rev   uint64 `json:"rev"`
}

// State is everything that one server holds at the end of a run.
type State struct {
	Server   int            `json:"server"`
	Revision uint64         `json:"revision"`
	Schema   uint32         `json:"schema"`
	Digest   string         `json:"digest"`
	Rows     map[string]Row `json:"rows"`
}

// Lost looks for acknowledged writes that a final state has neither itself nor
// as something newer, and for rows that nobody wrote.
func Lost(ops []Op, states []State) []Violation {
	r := report{checker: "acknowledged writes"}
	last := make(map[string]Op)
	wrote := make(map[string]Op)
	for _, o := range ops {
		if !o.writes() || o.Result != OK && o.Result != Unknown {
			continue
		}
		wrote[o.Key+"\x00"+o.Value] = o
		if o.Result == OK && o.Rev > last[o.Key].Rev {
			last[o.Key] = o
		}
	}
	for _, s := range states {
		for _, key := range sorted(last) {
			want, have := last[key], s.Rows[key]
			switch {
			case have.Rev < want.Rev:
				r.add("server %d at revision %d has %s@%d under %s; acknowledged was %s", s.Server, s.Revision,
					quote(have.Value), have.Rev, key, describe(want))
			case have.Rev == want.Rev && have.Value != want.Value:
				r.add("server %d has %s under %s; acknowledged was %s", s.Server, quote(have.Value), key, describe(want))
			}
		}
		for _, key := range sorted(s.Rows) {
			if row := s.Rows[key]; row.Value != "" {
				if _, ok := wrote[key+"\x00"+row.Value]; !ok {
					r.add("server %d has %s@%d under %s, which nobody wrote", s.Server, row.Value, row.Rev, key)
				}
			}
		}
	}
	return r.violations()
}

// Same wants equal digests of all servers, at one revision.
func Same(states []State) []Violation {
	r := report{checker: "digests"}
	for i := 1; i < len(states); i++ {
		first, s := states[0], states[i]
		if s.Revision != first.Revision || s.Schema != first.Schema || s.Digest != first.Digest {
			r.add("server %d is at revision %d with digest %s (schema %d), server %d at revision %d with %s (schema %d)",
				first.Server, first.Revision, first.Digest, first.Schema, s.Server, s.Revision, s.Digest, s.Schema)
		}
	}
	return r.violations()
}
