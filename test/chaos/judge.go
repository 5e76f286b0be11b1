package chaos

import (
	"context"
	"slices"

	"trivet/test/chaos/check"
	"trivet/test/chaos/load"
)

// judge lets the cluster come to rest, reads its final state, and checks
// everything.
func (r *Run) judge(ctx context.Context, h *load.History) error {
	qctx, cancel := context.WithTimeout(ctx, quietWithin)
	defer cancel()
	states, err := r.c.quiet(qctx)
	if err != nil {
		return err
	}
	for i := range states {
		states[i].Rows = make(map[string]check.Row)
		ids := make(map[string]bool)
		if err := r.c.dump(ctx, i, states[i].Rows, ids); err != nil {
			return err
		}
		r.final(h, states[i], ids)
	}
	attribute(h)
	r.result.verdict(h, states)
	return nil
}

// final adds what a server holds in the end as a read of everything.
func (r *Run) final(h *load.History, s check.State, ids map[string]bool) {
	at := r.now()
	read := func(key, value string, rev uint64) {
		h.Ops = append(h.Ops, check.Op{
			Client: -1 - s.Server, Server: s.Server, Kind: check.Get, Key: key, Value: value, Rev: rev, State: s.Revision,
			Call: at, Return: at, Result: check.OK,
		})
	}
	seen := make(map[string]bool)
	for _, o := range slices.Clone(h.Ops) {
		if seen[o.Key] {
			continue
		}
		seen[o.Key] = true
		id, isIntercept := cutIntercept(o.Key)
		switch row := s.Rows[o.Key]; {
		case !isIntercept:
			read(o.Key, row.Value, row.Rev)
		case ids["intercepts/"+id]:
			read(o.Key, interceptName(id), 0)
		default:
			read(o.Key, "", 0)
		}
	}
	for key := range s.Rows {
		if !seen[key] {
			delete(s.Rows, key) // not the load's
		}
	}
}

// attribute gives each session's life the ends of it that the watches showed.
func attribute(h *load.History) {
	gone := make(map[string][]int64)
	for _, s := range h.Streams {
		for _, b := range s.Batches {
			for _, x := range b.Changes {
				if x.Table == "sessions" && x.Op == "delete" {
					gone[x.Key] = append(gone[x.Key], b.At)
				}
			}
		}
	}
	for i := range h.Lives {
		h.Lives[i].Gone = append(h.Lives[i].Gone, gone[h.Lives[i].ID]...)
	}
}
