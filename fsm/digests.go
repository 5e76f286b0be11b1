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
	mu   sync.Mutex
	ring [digestHistory]digestible // guarded by mu
	next int                       // guarded by mu
}

// add notes a state. An entry without commands leads to none of its own.
func (d *digests) add(r *Root) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next > 0 && d.ring[(d.next-1)%digestHistory].revision == r.revision {
		return
	}
	d.ring[d.next%digestHistory] = r.digestible()
	d.next++
}

// reset forgets the history before a restore.
func (d *digests) reset(r *Root) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.ring[:])
	d.ring[0], d.next = r.digestible(), 1
}

// Digests returns the digests at the revisions after the last log entries, at
// or above a revision, in order. It may be called from anywhere and holds the
// writer up no longer than it takes to copy the list.
func (m *Machine) Digests(from uint64) []DigestAt {
	passed := m.digests.since(from)
	out := make([]DigestAt, len(passed))
	for i, d := range passed {
		out[i] = DigestAt{d.revision, d.digest()}
	}
	return out
}

func (d *digests) since(from uint64) (passed []digestible) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := max(0, d.next-digestHistory); i < d.next; i++ {
		if at := d.ring[i%digestHistory]; at.revision >= from {
			passed = append(passed, at)
		}
	}
	return passed
}
