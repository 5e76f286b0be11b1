package fsm

import (
	"google.golang.org/protobuf/proto"

	commandv1 "trivet/proto/trivet/command/v1"
)

// Diff returns the events that lead from one state to another: table by table
// in the order of their numbers, row by row in the order of their keys. A nil
// root is the empty state. Parts that the two share are skipped; a row that
// was removed and made again in between is one Put.
func Diff(from, to *Root) []Event {
	if from == nil {
		from = newRoot()
	}
	if to == nil {
		to = newRoot()
	}
	d := differ{revision: to.revision}
	diffTable(&d, &from.sessions, &to.sessions)
	diffTable(&d, &from.intercepts, &to.intercepts)
	diffTable(&d, &from.nodes, &to.nodes)
	diffTable(&d, &from.workloads, &to.workloads)
	diffTable(&d, &from.identities, &to.identities)
	diffTable(&d, &from.tokens, &to.tokens)
	diffTable(&d, &from.configs, &to.configs)
	diffTable(&d, &from.servers, &to.servers)
	diffTable(&d, &from.keys, &to.keys)
	diffTable(&d, &from.policies, &to.policies)
	d.meta(from.meta, to.meta)
	return d.events
}

type differ struct {
	revision uint64
	events   []Event
}

func diffTable[R any](d *differ, from, to *table[R]) {
	if from.rows == to.rows {
		return
	}
	a, b := from.rows.Iter(), to.rows.Iter()
	moreA, moreB := a.First(), b.First()
	for moreA || moreB {
		switch {
		case !moreB || moreA && a.Key() < b.Key():
			d.events = append(d.events, Event{
				Revision: d.revision, Table: to.kind.id, Key: a.Key(), Op: Delete,
				Old: message(a.Value()),
			})
			moreA = a.Next()
		case !moreA || b.Key() < a.Key():
			diffPut(d, to, b.Key(), nil, b.Value())
			moreB = b.Next()
		default:
			if a.Value() != b.Value() && a.Value().sum != b.Value().sum {
				diffPut(d, to, b.Key(), a.Value(), b.Value())
			}
			moreA, moreB = a.Next(), b.Next()
		}
	}
}

func diffPut[R any](d *differ, t *table[R], key string, old, s *stored[R]) {
	_, modified := t.kind.revisions(s.row)
	d.events = append(d.events, Event{
		Revision: modified, Table: t.kind.id, Key: key, Op: Put,
		Old: message(old), New: message(s),
	})
}

// meta compares the meta rows but for the time and the heads of the audit,
// which change all the time.
func (d *differ) meta(from, to *commandv1.MetaRow) {
	timeless := func(m *commandv1.MetaRow) *commandv1.MetaRow {
		m = edit(m)
		m.Time, m.SteadyTime, m.Audit = 0, 0, nil
		return m
	}
	if a, b := timeless(from), timeless(to); !proto.Equal(a, b) {
		e := Event{Revision: d.revision, Table: TableMeta, Key: metaKey, Op: Put, New: to}
		if from.GetClusterId() != "" {
			e.Old = from
		}
		d.events = append(d.events, e)
	}
}
