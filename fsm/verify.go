package fsm

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Verify recomputes from the rows alone everything that is kept incrementally,
// digest and indexes, and checks the rules that tie rows together. It returns
// an *InvariantError if anything differs. It reads the whole state.
func (r *Root) Verify() error {
	v := &verifier{enc: newEncoder(), revision: r.revision}
	verifyTable(v, &r.sessions)
	verifyTable(v, &r.intercepts)
	verifyTable(v, &r.nodes)
	verifyTable(v, &r.workloads)
	verifyTable(v, &r.identities)
	verifyTable(v, &r.tokens)
	verifyTable(v, &r.configs)
	verifyTable(v, &r.servers)
	verifyTable(v, &r.writers)
	verifyTable(v, &r.answers)
	verifyTable(v, &r.keys)
	verifyTable(v, &r.policies)
	verifyTable(v, &r.audit)
	if v.total != r.sum {
		v.fail("the digest kept is not that of the rows")
	}
	if v.err != nil {
		return v.err
	}
	return r.check()
}

type verifier struct {
	enc      *encoder
	revision uint64
	total    sum
	err      error
}

func (v *verifier) fail(format string, args ...any) {
	if v.err == nil {
		v.err = &InvariantError{Detail: fmt.Sprintf(format, args...)}
	}
}

func verifyTable[R any](v *verifier, t *table[R]) {
	want := make([]map[string]string, len(t.kind.index))
	for i := range want {
		want[i] = map[string]string{}
	}
	t.rows.Scan(func(key string, s *stored[R]) bool {
		if t.kind.key(s.row) != key {
			v.fail("%v: a row is stored under %q", t.kind.id, key)
		}
		el := v.enc.element(t.kind.tag, key, func() { t.kind.encode(v.enc, s.row) })
		if el.sum != s.sum || el.size != s.size {
			v.fail("%v: row %q was modified after it was stored", t.kind.id, key)
		}
		v.total.add(el.sum)
		if create, modify := t.kind.revisions(s.row); create > modify || modify > v.revision {
			v.fail("%v: row %q has revisions %d and %d at revision %d",
				t.kind.id, key, create, modify, v.revision)
		}
		for i, of := range t.kind.index {
			of(s.row, func(prefix string) { want[i][prefix+key] = key })
		}
		return true
	})
	for i := range want {
		n := 0
		t.indexes[i].Scan(func(at, key string) bool {
			n++
			if k, ok := want[i][at]; !ok || k != key {
				v.fail("%v: index %d has %q for nothing", t.kind.id, i, at)
			}
			return true
		})
		if n != len(want[i]) {
			v.fail("%v: index %d has %d entries, not %d", t.kind.id, i, n, len(want[i]))
		}
	}
}

// check looks at the rules that tie rows together.
func (r *Root) check() error {
	for _, problems := range []iter.Seq[string]{
		r.sessionProblems, r.interceptProblems, r.workloadProblems, r.dedupeProblems, r.keyProblems, r.auditProblems,
	} {
		for problem := range problems {
			return &InvariantError{Detail: problem}
		}
	}
	return nil
}

func (r *Root) sessionProblems(yield func(string) bool) {
	for row := range r.Sessions {
		var fits bool
		switch row.GetKind() {
		case commandv1.SessionKind_SESSION_KIND_CLIENT:
			fits = row.GetClient() != nil && row.GetAgent() == nil
		case commandv1.SessionKind_SESSION_KIND_AGENT:
			fits = row.GetAgent() != nil && row.GetClient() == nil
		}
		if !fits && !yield(fmt.Sprintf("session %q is neither a client nor an agent", row.GetId())) {
			return
		}
		isAgent := row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT
		if strings.HasPrefix(row.GetId(), agentPrefix) != isAgent &&
			!yield(fmt.Sprintf("session %q has an id of the other kind", row.GetId())) {
			return
		}
	}
}

func (r *Root) interceptProblems(yield func(string) bool) {
	for row := range r.Intercepts {
		owner, ok := r.Session(row.GetSessionId())
		if (!ok || owner.GetKind() != commandv1.SessionKind_SESSION_KIND_CLIENT) &&
			!yield(fmt.Sprintf("intercept %q has no client session", row.GetId())) {
			return
		}
		if row.GetId() != interceptID(row.GetSessionId(), row.GetSpec().GetName()) &&
			!yield(fmt.Sprintf("intercept %q has an id that is not its own", row.GetId())) {
			return
		}
		if agent := row.GetAgentSessionId(); agent != "" {
			if _, ok := r.Session(agent); !ok &&
				!yield(fmt.Sprintf("intercept %q is served by %q, which is gone", row.GetId(), agent)) {
				return
			}
		}
	}
}

func (r *Root) workloadProblems(yield func(string) bool) {
	for row := range r.Workloads {
		if (!validName(row.GetNamespace()) || !validName(row.GetName()) ||
			!slices.IsSortedFunc(row.GetPods(), comparePods) ||
			slices.ContainsFunc(row.GetPods(), func(p *commandv1.Pod) bool { return p.GetNode() == "" })) &&
			!yield(fmt.Sprintf("workload %q is malformed", workloadKind.key(row))) {
			return
		}
	}
}

func (r *Root) dedupeProblems(yield func(string) bool) {
	total := 0
	for w := range r.writers.all {
		answers, size := 0, 0
		r.answersOf(w.key(), func(a *answer) bool {
			s, _ := r.answers.rows.Get(answerKind.key(a))
			answers++
			size += s.size
			return true
		})
		if (answers != w.answers || size != w.bytes || w.usedAt < 0) &&
			!yield(fmt.Sprintf("writer %q is malformed", w.name)) {
			return
		}
		total += answers
	}
	if total != r.answers.rows.Len() {
		yield("an answer belongs to no writer")
	}
}

// keyProblems finds rows without a key. Nothing can make one, and nothing
// could name it.
func (r *Root) keyProblems(yield func(string) bool) {
	for _, empty := range []bool{
		has(&r.sessions), has(&r.intercepts), has(&r.nodes), has(&r.identities),
		has(&r.tokens), has(&r.configs), has(&r.servers), has(&r.keys), has(&r.policies),
	} {
		if empty && !yield("a row has no key") {
			return
		}
	}
	active := map[string]bool{}
	for row := range r.Keys {
		if row.GetActive() && active[row.GetKind()] && !yield(fmt.Sprintf("two keys of kind %q are active", row.GetKind())) {
			return
		}
		active[row.GetKind()] = active[row.GetKind()] || row.GetActive()
	}
}

func has[R any](t *table[R]) bool {
	_, ok := t.rows.Get("")
	return ok
}
