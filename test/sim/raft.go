package sim

import (
	"bytes"
	"slices"
	"time"

	"trivet/cluster/replica"
)

const (
	electionTimeout = 500 * time.Millisecond
	leaderLease     = 250 * time.Millisecond
)

// entry is one entry of the log; without data it is the one with which a leader
// begins.
type entry struct {
	term     uint64
	data     []byte
	commands int
}

// log is what a server has on disk. A vote is the adoption of a term: whoever
// has adopted it votes for nobody else in it.
type log struct {
	term uint64
	// snapshot is the state at entry snapIndex; nil: the empty state at 0.
	snapshot  []byte
	snapIndex uint64
	// base is the number of entries that are not kept any more, baseTerm the
	// term of the last of them.
	base, baseTerm uint64
	entries        []entry
}

func (l *log) last() uint64 { return l.base + uint64(len(l.entries)) }

// termAt is the term of an entry at or above base.
func (l *log) termAt(i uint64) uint64 {
	if i == l.base {
		return l.baseTerm
	}
	return l.entries[i-l.base-1].term
}

func (l *log) at(i uint64) entry { return l.entries[i-l.base-1] }

// compact forgets the entries up to i.
func (l *log) compact(i uint64) {
	if i <= l.base {
		return
	}
	term := l.termAt(i)
	l.entries = slices.Clone(l.entries[i-l.base:])
	l.base, l.baseTerm = i, term
}

// raft is what a server knows of the log beyond what is on its disk.
type raft struct {
	leads bool
	// leader is who leads as far as the server knows; nil: nobody.
	leader          *server
	commit, applied uint64
	// heard is when the leader was last heard of.
	heard, patience time.Duration
	// match and contact are the leader's, about the others.
	match   [servers]uint64
	contact [servers]time.Duration
	// first is the entry with which the present leadership began.
	first uint64
	// pending are the batches whose entries are under way.
	pending []pendingBatch
	applies bool // an apply is on its way
}

type pendingBatch struct {
	index uint64
	batch *replica.Batch
}

// tick is the pulse of the log: heartbeats, the lease, elections.
func (s *server) tick() {
	every := 160 * time.Millisecond
	if !s.w.quiet {
		every = s.w.sched.between(every/2, every)
	}
	s.after(every, s.tick)
	if s.leads {
		s.replicateAll()
		n := 0
		for i := range servers {
			if i == s.i || s.w.now-s.contact[i] <= leaderLease {
				n++
			}
		}
		if n < quorum {
			s.stepDown()
		}
		return
	}
	if s.w.now-s.heard > s.patience {
		s.elect()
	}
}

// elect asks for the votes of those that can be reached.
func (s *server) elect() {
	w := s.w
	s.heard, s.patience = w.now, electionTimeout+w.sched.between(0, electionTimeout)
	term := s.log.term
	var voters []*server
	for _, v := range w.servers {
		switch {
		case v == s:
		case !v.alive || v.paused || !w.path(s, v) || !w.path(v, s):
			continue
		case v.leader != nil && v != v.leader && w.now-v.heard < electionTimeout && !w.sched.oneIn(4):
			continue // it hears a leader; a transfer of leadership goes past that
		case w.Plant == VoteForOld:
		case v.lastTerm() > s.lastTerm() || v.lastTerm() == s.lastTerm() && v.log.last() > s.log.last():
			continue
		}
		voters = append(voters, v)
		term = max(term, v.log.term)
	}
	if len(voters) < quorum {
		return
	}
	for _, v := range voters {
		v.adopt(term+1, nil)
	}
	for _, o := range w.servers {
		if o != s && o.alive && o.leads {
			w.counts.StaleLeaders++
		}
	}
	w.counts.Elections++
	w.note("elected", s.name, term+1, s.log.last())
	s.leads, s.leader = true, s
	s.match = [servers]uint64{}
	for i := range s.contact {
		s.contact[i] = w.now
	}
	s.clock.lead(s)
	s.log.entries = append(s.log.entries, entry{term: s.log.term})
	s.first = s.log.last()
	s.replicateAll()
}

func (s *server) lastTerm() uint64 { return s.log.termAt(s.log.last()) }

// adopt takes a term over if it is newer; a leader of an older one ends.
func (s *server) adopt(term uint64, leader *server) {
	if term > s.log.term || leader != nil && leader != s && s.leads {
		s.stepDown()
	}
	s.log.term = max(s.log.term, term)
	s.leader = leader
}

// stepDown ends a leadership: of what is under way nobody here will know how it
// ended.
func (s *server) stepDown() {
	s.leader = nil
	if !s.leads {
		return
	}
	s.leads = false
	s.heard = s.w.now
	s.w.note("steps down", s.name, s.log.term, uint64(len(s.pending)))
	pending := s.pending
	s.pending = nil
	for _, p := range pending {
		s.soon(20*time.Millisecond, func() { s.finish(p.batch, nil, replica.ErrUnknownOutcome) })
	}
	s.tell(0)
}

// append puts a batch into the leader's own log.
func (s *server) append(b *replica.Batch) {
	if !s.leads {
		s.finish(b, nil, replica.ErrNotLeader)
		return
	}
	s.w.counts.Batches++
	s.log.entries = append(s.log.entries, entry{term: s.log.term, data: b.Data, commands: b.Commands})
	s.w.note("append", s.name, s.log.last(), uint64(b.Commands))
	if s.w.Plant == AckEarly && s.w.chance.oneIn(4) {
		s.ackEarly(b)
	} else {
		s.pending = append(s.pending, pendingBatch{s.log.last(), b})
	}
	s.replicateAll()
	s.w.unlucky(s, 80)
}

func (s *server) replicateAll() {
	for _, o := range s.w.servers {
		if o != s {
			term := s.log.term
			s.send(o, 5*time.Millisecond, func() { s.replicate(o, term) })
		}
	}
}

// replicate is the arrival of entries at o, and of the answer if that is not
// lost.
func (s *server) replicate(o *server, term uint64) {
	w := s.w
	if !s.alive || !s.leads || s.log.term != term {
		return
	}
	if o.log.term > term {
		newer := o.log.term
		o.send(s, 2*time.Millisecond, func() {
			if newer > s.log.term {
				s.adopt(newer, nil)
			}
		})
		return
	}
	o.adopt(term, s)
	o.heard = w.now
	matched, ok := s.ship(o)
	if !ok {
		return
	}
	if c := min(s.commit, matched); c > o.commit {
		o.commit = c
		o.scheduleApply()
	}
	o.send(s, 2*time.Millisecond, func() {
		if s.leads && s.log.term == term {
			s.contact[o.i] = w.now
			s.match[o.i] = max(s.match[o.i], matched)
			s.advance()
		}
	})
}

// ship brings o's log in step with s's, in part or in whole, and returns up to
// where they are the same.
func (s *server) ship(o *server) (uint64, bool) {
	same := min(s.log.last(), o.log.last())
	for same > o.log.base && same >= s.log.base && s.log.termAt(same) != o.log.termAt(same) {
		same--
	}
	// What o does not keep any more is committed, hence the same.
	if same < s.log.base {
		return s.install(o)
	}
	if o.log.last() > same {
		if same < o.commit {
			s.w.violate("%s would overwrite entry %d of %s, committed up to %d", s.name, same+1, o.name, o.commit)
			return 0, false
		}
		// Only entries that differ are cut off: a message that was overtaken must
		// not undo what was stored since.
		if s.log.last() > same {
			s.w.counts.Truncated += int(o.log.last() - same)
			s.w.note("truncate", o.name, same, o.log.last())
			o.log.entries = o.log.entries[:same-o.log.base]
		}
	}
	n := s.log.last() - same
	if n > 1 && !s.w.quiet && s.w.net.oneIn(3) {
		n = 1 + uint64(s.w.net.n(int(n)))
	}
	for i := same + 1; i <= same+n; i++ {
		o.log.entries = append(o.log.entries, s.log.at(i))
	}
	return same + n, true
}

// install gives o the leader's snapshot in place of entries that are not kept.
func (s *server) install(o *server) (uint64, bool) {
	l := &s.log
	if l.snapIndex <= o.applied {
		return 0, false
	}
	s.w.counts.Installs++
	s.w.note("install", o.name, l.snapIndex, o.applied)
	keeps := o.log.last() >= l.snapIndex && o.log.base <= l.snapIndex && o.log.termAt(l.snapIndex) == l.termAt(l.snapIndex)
	if keeps {
		o.log.compact(l.snapIndex)
	} else {
		o.log.base, o.log.baseTerm, o.log.entries = l.snapIndex, l.termAt(l.snapIndex), nil
	}
	o.log.snapshot, o.log.snapIndex = l.snapshot, l.snapIndex
	o.restore()
	o.commit = max(o.commit, o.applied)
	return l.snapIndex, true
}

// advance commits what a majority has, if an entry of this term is among it.
func (s *server) advance() {
	s.match[s.i] = s.log.last()
	m := s.match
	slices.Sort(m[:])
	n := m[servers-quorum]
	if n <= s.commit || s.log.termAt(n) != s.log.term {
		return
	}
	for i := s.commit + 1; i <= n; i++ {
		s.w.canon.commit(i, s.log.at(i))
	}
	s.commit = n
	s.scheduleApply()
}

func (s *server) scheduleApply() {
	if s.applies || s.applied >= s.commit {
		return
	}
	s.applies = true
	s.soon(s.lag, func() {
		s.applies = false
		s.applyNext()
		s.scheduleApply()
	})
}

// applyNext applies the next committed entry and answers whoever waits for it.
func (s *server) applyNext() {
	i := s.applied + 1
	if i > s.commit {
		return // a snapshot was faster
	}
	e := s.log.at(i)
	results := s.apply(i, e)
	s.applied = i
	if len(s.pending) > 0 && s.pending[0].index == i {
		b := s.pending[0].batch
		s.pending = s.pending[1:]
		s.finish(b, results, nil)
	}
	if s.leads && i == s.first {
		s.clock.raise(s)
		s.tell(s.log.term)
	}
	if s.w.chance.oneIn(25) {
		s.takeSnapshot()
	}
	s.progressed()
}

func (s *server) takeSnapshot() {
	var buf bytes.Buffer
	if _, err := s.machine.Snapshot().WriteTo(&buf); err != nil {
		s.w.violate("snapshot of %s: %v", s.name, err)
		return
	}
	s.w.counts.Snapshots++
	s.log.snapshot, s.log.snapIndex = buf.Bytes(), s.applied
	trail := uint64(s.w.chance.n(4))
	s.log.compact(max(s.applied, trail) - trail)
}
