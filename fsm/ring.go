package fsm

import (
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"
)

// Op says what an event did to its row.
type Op uint8

// The two things that can happen to a row.
const (
	Put Op = iota + 1
	Delete
)

// String returns "put" or "delete".
func (o Op) String() string {
	switch o {
	case Put:
		return "put"
	case Delete:
		return "delete"
	}
	return "op"
}

// Event is one change of one row, the same on every replica. The rows are
// shared and must not be modified.
type Event struct {
	// Revision of the command that made the change. In a difference of two
	// roots it is the modify revision of the new row, or, for a deletion, the
	// revision of the newer root.
	Revision uint64
	Table    Table
	// Key is the row's id, name, URI or key; "<namespace>/<name>" for
	// workloads, "meta" for the meta row.
	Key string
	Op  Op
	// Old is nil when the row is new, New when it is deleted.
	Old, New proto.Message
}

// ring keeps the newest events, those of one entry together. Nothing in it
// waits for a reader: the oldest events go when the bound is reached, and a
// reader that needed them compares roots instead.
type ring struct {
	size int

	mu sync.RWMutex
	// spans holds the events of the last entries that had any; guarded by mu,
	// the slices themselves are immutable.
	spans [][]Event
	// first is the sequence number of spans[0]; guarded by mu.
	first uint64
	// held is the number of events in spans; guarded by mu.
	held int
	// floor is the revision up to which events are missing; guarded by mu.
	floor uint64
	// epoch grows with each restore; guarded by mu.
	epoch uint64
	// wake is closed when something is added; guarded by mu.
	wake chan struct{}
}

func (r *ring) init(size int) {
	r.size = size
	r.wake = make(chan struct{})
}

// publish makes a root and its events visible at once. store is called with
// the lock held.
func (r *ring) publish(root *Root, events []Event, store func(*Root)) {
	if len(events) == 0 {
		store(root)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	store(root)
	r.spans = append(r.spans, slices.Clip(events)) // readers may append
	r.held += len(events)
	for r.held > r.size {
		gone := r.spans[0]
		r.spans[0] = nil
		r.spans = r.spans[1:]
		r.first++
		r.held -= len(gone)
		r.floor = gone[len(gone)-1].Revision
	}
	r.signal()
}

// reset makes a restored root visible. No event leads to it.
func (r *ring) reset(root *Root, store func(*Root)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	store(root)
	r.first += uint64(len(r.spans))
	r.spans, r.held = nil, 0
	r.floor = root.revision
	r.epoch = root.epoch
	r.signal()
}

// signal wakes everybody; the caller holds mu.
func (r *ring) signal() {
	close(r.wake)
	r.wake = make(chan struct{})
}

// next returns the sequence number the next span will get; the caller holds
// mu.
func (r *ring) next() uint64 { return r.first + uint64(len(r.spans)) }

// since returns the spans from seq on, and whether none of them is missing;
// the caller holds mu.
func (r *ring) since(epoch, seq uint64) (spans [][]Event, complete bool) {
	if epoch != r.epoch || seq < r.first {
		return nil, false
	}
	return slices.Clone(r.spans[seq-r.first:]), true
}

// after returns the events above a revision, and whether none of them is
// missing; the caller holds mu.
func (r *ring) after(revision uint64) (events []Event, complete bool) {
	if revision < r.floor {
		return nil, false
	}
	i, _ := slices.BinarySearchFunc(r.spans, revision, func(span []Event, revision uint64) int {
		if span[len(span)-1].Revision <= revision {
			return -1
		}
		return 1
	})
	for _, span := range r.spans[i:] {
		for _, e := range span {
			if e.Revision > revision {
				events = append(events, e)
			}
		}
	}
	return events, true
}
