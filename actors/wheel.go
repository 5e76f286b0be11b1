package actors

import "time"

// wheelSlots is the number of slots of a wheel. With a tick of a second it
// spans the longest period of an agent; a deadline beyond the span is parked
// in the last slot and looked at again there.
const wheelSlots = 128

// wheel is a hashed timing wheel with lazy entries: an entry that comes due is
// handed out, and whoever gets it checks the true deadline. Moving a deadline
// later therefore costs nothing, which is what every Remain does; moving it
// earlier adds an entry and leaves the old one to be skipped.
//
// A wheel is not safe for concurrent use.
type wheel struct {
	grain time.Duration
	tick  int64 // the last tick handed out
	slots [wheelSlots][]wheelEntry
}

// wheelEntry is one look at one session.
type wheelEntry struct {
	session *session
	tick    int64
}

// tickAfter is the first tick that lies strictly after t.
func (w *wheel) tickAfter(t instant) int64 {
	return int64(t)/int64(w.grain) + 1
}

// schedule makes sure that s is looked at as soon as deadline has passed, or
// before.
func (w *wheel) schedule(s *session, deadline instant) {
	tick := min(max(w.tickAfter(deadline), w.tick+1), w.tick+wheelSlots)
	if s.tick > w.tick && s.tick <= tick {
		return // an earlier look is due anyway and will schedule the next
	}
	s.tick = tick
	slot := &w.slots[tick%wheelSlots]
	*slot = append(*slot, wheelEntry{session: s, tick: tick})
}

// advance appends the sessions whose look has come by now to due and returns
// it. Each must be scheduled again or be dropped by its owner.
func (w *wheel) advance(now instant, due []*session) []*session {
	target := int64(now) / int64(w.grain)
	// After one round every slot has been seen; more rounds find nothing.
	first := max(w.tick+1, target-wheelSlots+1)
	for tick := first; tick <= target; tick++ {
		w.tick = tick
		slot := &w.slots[tick%wheelSlots]
		for _, e := range *slot {
			// An entry is stale when its session was scheduled anew.
			if e.session.tick == e.tick {
				e.session.tick = 0
				due = append(due, e.session)
			}
		}
		clear(*slot)
		*slot = (*slot)[:0]
		if cap(*slot) > wheelSlotKeep {
			*slot = nil
		}
	}
	return due
}

// wheelSlotKeep is the capacity above which an emptied slot gives its memory
// back: after a failover all sessions sit in one slot, once.
const wheelSlotKeep = 256
