package fsm

import "sync"

// digestHistory is the number of digests that are kept: one per log entry.
const digestHistory = 512

// DigestAt is the digest of the state at a revision.
type DigestAt struct {
	Revision uint64
	Digest   [32]byte
}

// digests remembers the states after the last log entries, so that servers,
// which are hardly ever at the same revision when they are asked, can compare
// one that both have passed. Digests are computed when they are asked for.
type digests struct {
	mu    sync.Mutex
	roots [digestHistory]lightRoot // guarded by mu
	next  int                      // guarded by mu
}

// lightRoot is what the digest of a root needs, without its tables.
type lightRoot struct{ root *Root }

func light(r *Root) lightRoot {
	return lightRoot{&Root{revision: r.revision, meta: r.meta, sum: r.sum}}
}

func (d *digests) add(r *Root) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roots[d.next%digestHistory] = light(r)
	d.next++
}

// reset forgets the history before a restore.
func (d *digests) reset(r *Root) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.roots = [digestHistory]lightRoot{}
	d.roots[0], d.next = light(r), 1
}

// Digests returns the digests at the revisions after the last log entries, at
// or above a revision, in order. It may be called from anywhere.
func (m *Machine) Digests(from uint64) []DigestAt {
	m.digests.mu.Lock()
	var roots []*Root
	for i := max(0, m.digests.next-digestHistory); i < m.digests.next; i++ {
		if r := m.digests.roots[i%digestHistory].root; r.revision >= from {
			roots = append(roots, r)
		}
	}
	m.digests.mu.Unlock()
	out := make([]DigestAt, len(roots))
	for i, r := range roots {
		out[i] = DigestAt{r.revision, r.Digest()}
	}
	return out
}
