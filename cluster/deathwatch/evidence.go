package deathwatch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// tellTimeout bounds the telling of one other server. It is longer than
	// hearWithin, for which that one may hold its answer.
	tellTimeout = 500 * time.Millisecond
	// hearWithin is how long an answer is held for the own connection to end as
	// well: those of one process end within milliseconds.
	hearWithin = 200 * time.Millisecond
	// agreeWithin is how long evidence waits for that of others. Then the
	// timeouts have found the leader's end, or it is only a cut.
	agreeWithin = time.Second
	// freshFor is how long the evidence of another server counts. One that still
	// sees no leader says so again when it is told; one that sees it again does
	// not.
	freshFor = 2 * time.Second
	// casesKept bounds what is remembered: terms pass.
	casesKept = 4
)

// Evidence is what one voter knows about the end of a leader's process.
type Evidence struct {
	// From is the voter, Leader the leader of Term.
	From   string
	Leader string
	Term   uint64
	// Seen: From saw the end itself.
	Seen bool
	// LastTerm and LastIndex are where From's log ends.
	LastTerm, LastIndex uint64
	// Newest is the newest term that From has seen or voted in.
	Newest uint64
}

// matter is what evidence is about.
type matter struct {
	leader string
	term   uint64
}

// inquiry collects evidence about one leader of one term.
type inquiry struct {
	seen map[string]dated
	// changed is closed when evidence arrives.
	changed chan struct{}
}

type dated struct {
	Evidence
	at time.Time
}

// open returns the inquiry of a matter; the caller holds mu.
func (w *Watch) open(m matter) *inquiry {
	q := w.cases[m]
	if q == nil {
		for len(w.cases) >= casesKept {
			delete(w.cases, slices.MinFunc(slices.Collect(maps.Keys(w.cases)), func(a, b matter) int { return cmp.Compare(a.term, b.term) }))
		}
		q = &inquiry{seen: make(map[string]dated), changed: make(chan struct{})}
		w.cases[m] = q
	}
	return q
}

// record notes that a voter saw the end.
func (w *Watch) record(m matter, e Evidence) {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.open(m)
	q.seen[e.From] = dated{e, time.Now()}
	close(q.changed)
	q.changed = make(chan struct{})
}

// withdraw takes this server's own evidence against a server back: its process
// lives, the connection was cut.
func (w *Watch) withdraw(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for m, q := range w.cases {
		if m.leader == server {
			delete(q.seen, w.cfg.Self)
		}
	}
}

// own is this server's evidence as it is now.
func (w *Watch) own(m matter, seen bool) Evidence {
	e := Evidence{From: w.cfg.Self, Leader: m.leader, Term: m.term, Seen: seen, Newest: w.cfg.Raft.Term()}
	e.LastTerm, e.LastIndex = w.cfg.Raft.LastEntry()
	return e
}

// inquire tells the other voters what this server saw and waits until a
// majority of the voters saw it too. It returns this server's place among
// those, the best log first.
func (w *Watch) inquire(ctx context.Context, m matter) (rank int, agreed bool) {
	w.record(m, w.own(m, true))
	ctx, cancel := context.WithTimeout(ctx, agreeWithin)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	w.mu.Lock()
	others := slices.Clone(w.voters)
	w.mu.Unlock()
	for _, v := range others {
		if v.ID == w.cfg.Self || v.ID == m.leader {
			continue
		}
		wg.Go(func() { w.tell(ctx, v, m) })
	}
	for {
		w.mu.Lock()
		q := w.open(m)
		rank, agreed = w.verdict(q)
		changed := q.changed
		w.mu.Unlock()
		if agreed {
			return rank, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			w.mu.Lock()
			w.lonely++
			w.mu.Unlock()
			w.cfg.Logger.Info("the leader seems to be gone, but no majority of the servers saw it", "leader", m.leader, "term", m.term)
			return 0, false
		}
	}
}

// tell passes this server's evidence on and records what comes back.
func (w *Watch) tell(ctx context.Context, to Server, m matter) {
	ctx, cancel := context.WithTimeout(ctx, tellTimeout)
	defer cancel()
	e, err := w.cfg.Tell(ctx, to, w.own(m, true))
	if err != nil {
		w.cfg.Logger.Debug("a server did not take the evidence", "server", to.ID, "err", err)
		return
	}
	if e.Seen && e.From == to.ID {
		w.record(m, e)
	}
}

// verdict says whether a majority of the voters saw the end, and this server's
// place among them; the caller holds mu.
func (w *Watch) verdict(q *inquiry) (rank int, agreed bool) {
	var saw []Evidence
	for _, v := range w.voters {
		if e, ok := q.seen[v.ID]; ok && (v.ID == w.cfg.Self || time.Since(e.at) < freshFor) {
			saw = append(saw, e.Evidence)
		}
	}
	slices.SortFunc(saw, func(a, b Evidence) int {
		return cmp.Or(cmp.Compare(b.LastTerm, a.LastTerm), cmp.Compare(b.LastIndex, a.LastIndex), cmp.Compare(a.From, b.From))
	})
	rank = slices.IndexFunc(saw, func(e Evidence) bool { return e.From == w.cfg.Self })
	return rank, rank >= 0 && len(saw) >= len(w.voters)/2+1
}

// Hear takes another voter's evidence and answers with this server's own,
// which it waits for a moment.
func (w *Watch) Hear(ctx context.Context, e Evidence) Evidence {
	m := matter{e.Leader, e.Term}
	if leader, _ := w.cfg.Raft.Leader(); leader != m.leader || w.cfg.Raft.Term() != m.term {
		return w.own(m, false)
	}
	if e.Seen {
		w.record(m, e)
	}
	ctx, cancel := context.WithTimeout(ctx, hearWithin)
	defer cancel()
	for {
		w.mu.Lock()
		q := w.open(m)
		_, seen := q.seen[w.cfg.Self]
		changed := q.changed
		w.mu.Unlock()
		if seen {
			return w.own(m, true)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return w.own(m, false)
		}
	}
}
