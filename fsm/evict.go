package fsm

import (
	"cmp"
	"slices"
	"strings"

	commandv1 "trivet/proto/trivet/command/v1"
)

// dedupeBounds bound the dedupe table. A writer that keeps within its own is
// affected by others only if there are more identities than fit, and then those
// that hold most give way.
type dedupeBounds struct {
	// writerBytes is the size of the unfetched answers of one writer, serverBytes
	// that of a server, which answers for all its callers: it is enough for
	// maxAnswers of the largest answers there are.
	writerBytes, serverBytes int
	// identityWriters and identityBytes are what one identity may have. Beyond
	// them its own least recently used writer goes.
	identityWriters, identityBytes int
	// writers and bytes are those of the whole table.
	writers, bytes int
}

var defaultBounds = dedupeBounds{
	writerBytes: 4 << 20, serverBytes: maxAnswers * maxAnswer,
	identityWriters: 256, identityBytes: 8 << 20,
	writers: 4096, bytes: 64 << 20,
}

func (t *tx) maxBytesOf(w *writer) int {
	if t.since2() && w.isServer() {
		return t.work.bounds.serverBytes
	}
	return t.work.bounds.writerBytes
}

// share is what the writers of one identity take up.
type share struct{ writers, bytes int }

// account keeps the shares in step with the writers. Either of the rows may be
// nil. Servers have no share: they never give way to callers.
func (r *Root) account(old, w *writer) {
	add := func(w *writer, sign int) {
		if w == nil || w.isServer() {
			return
		}
		s := r.shares[w.identity]
		s.writers += sign
		s.bytes += sign * w.bytes
		if s.writers == 0 {
			delete(r.shares, w.identity)
			return
		}
		r.shares[w.identity] = s
	}
	add(w, 1)
	add(old, -1)
}

func (t *tx) putWriter(w *writer) {
	old, _ := t.work.writers.get(w.key())
	t.work.account(old, w)
	put(t, &t.work.writers, w)
}

func (t *tx) dropWriter(key string) {
	old, _ := t.work.writers.get(key)
	t.work.account(old, nil)
	drop(t, &t.work.writers, key)
}

// makeRoomFor forgets a writer if there is no room for a new one.
func (t *tx) makeRoomFor(w *writer) {
	b := t.work.bounds
	if t.since2() && w.identity != "" && t.work.shares[w.identity].writers >= b.identityWriters {
		t.evictOf(w.identity, w.key())
	}
	if t.work.writers.rows.Len() >= b.writers {
		t.evict(w, func(s share) int { return s.writers })
	}
}

// keepWithin forgets writers until the answers take no more than they may; w is
// the one that has just been used and stays.
func (t *tx) keepWithin(w *writer) {
	b := t.work.bounds
	for t.since2() && w.identity != "" && t.work.shares[w.identity].bytes > b.identityBytes &&
		t.evictOf(w.identity, w.key()) {
		continue
	}
	for t.work.dedupeBytes > b.bytes && t.evict(w, func(s share) int { return s.bytes }) {
		continue
	}
}

// evictOf forgets the identity's least recently used writer that is not keep.
// It reports whether there was one.
func (t *tx) evictOf(identity, keep string) bool {
	var victim *writer
	t.work.writers.rows.Ascend(part(identity), func(_ string, s *stored[*writer]) bool {
		w := s.row
		if w.identity != identity {
			return false
		}
		if w.key() != keep && (victim == nil || w.usedAt < victim.usedAt) {
			victim = w
		}
		return true
	})
	if victim == nil {
		return false
	}
	t.forget(victim.key())
	return true
}

// evict forgets the least recently used writer of those identities that hold
// most by a measure, but not keep. It reports whether there was one.
func (t *tx) evict(keep *writer, measure func(share) int) bool {
	// What keep itself has cannot give way.
	own := share{}
	if known, ok := t.work.writers.get(keep.key()); ok && !keep.isServer() {
		own = share{1, known.bytes}
	}
	held := func(identity string) int {
		s := t.work.shares[identity]
		if identity == keep.identity {
			s.writers -= own.writers
			s.bytes -= own.bytes
		}
		return measure(s)
	}
	most := 0
	if t.since2() {
		for identity := range t.work.shares { // in any order: it is a maximum
			most = max(most, held(identity))
		}
	}
	victim := ""
	t.work.writers.indexes[writersByUse].Scan(func(_, key string) bool {
		w, _ := t.work.writers.get(key)
		// Without shares to compare, which is how it was before version 2 and is
		// when only servers are left, everybody is as good.
		if key != keep.key() && (most == 0 || !w.isServer() && held(w.identity) == most) {
			victim = key
		}
		return victim == ""
	})
	if victim == "" {
		return false
	}
	t.forget(victim)
	return true
}

func (t *tx) forgetIdle() {
	var idle []string
	t.work.writers.indexes[writersByUse].Scan(func(_, key string) bool {
		w, _ := t.work.writers.get(key)
		if t.steady()-w.usedAt < writerIdle || len(idle) == idleDropsPerCommand {
			return false
		}
		idle = append(idle, key)
		return true
	})
	for _, key := range idle {
		t.forget(key)
	}
}

// maxRetired is how many retired writers of one server are remembered.
const maxRetired = 16

// retireProcess ends the numbering of the process that a server's row names:
// nobody is left to ask for the answers, but a write that was sent long ago and
// is still on its way somewhere must not be applied a second time. Never those of
// "all others": one of them may be the living one, which has not registered yet.
func (t *tx) retireProcess(server *commandv1.ServerRow) {
	prefix := serverWriters + server.GetId() + "/"
	var retired []*writer
	t.work.writers.rows.Ascend((&writer{name: prefix}).key(), func(_ string, s *stored[*writer]) bool {
		// One process has several numberings if it was retired while it lived.
		rest, ok := strings.CutPrefix(s.row.name, prefix)
		boot, _, _ := strings.Cut(rest, "/")
		if ok && (s.row.retired() || boot == server.GetBootId()) {
			retired = append(retired, s.row)
		}
		return ok
	})
	for i, w := range retired {
		if !w.retired() {
			retired[i] = t.retire(w)
		}
	}
	// The revision is that of the retirement: a retired writer is not touched again.
	slices.SortFunc(retired, func(a, b *writer) int {
		return cmp.Or(cmp.Compare(b.modifyRevision, a.modifyRevision), strings.Compare(a.name, b.name))
	})
	for _, w := range retired[min(len(retired), maxRetired):] {
		t.forget(w.key())
	}
}

// retire drops a writer's answers and refuses its commands from now on.
func (t *tx) retire(w *writer) *writer {
	next := *w
	t.release(&next, retiredLowest)
	next.usedAt = t.steady()
	t.putWriter(&next)
	return &next
}

// forgetIncarnations drops the writers of a server's earlier processes: nobody
// is left to ask for their answers. It is what version 1 does.
func (t *tx) forgetIncarnations(names []string, bootID string) {
	var prefixes []string
	for _, name := range names {
		if name != "" {
			prefixes = append(prefixes, serverWriters+name+"/")
		}
	}
	var gone []string
	for w := range t.work.writers.all {
		if slices.ContainsFunc(prefixes, func(p string) bool {
			boot, ok := strings.CutPrefix(w.name, p)
			return ok && boot != bootID
		}) {
			gone = append(gone, w.key())
		}
	}
	for _, key := range gone {
		t.forget(key)
	}
}
