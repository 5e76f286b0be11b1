package fsm

// Batch is what a cursor has to say: the events that lead from the state of
// the previous batch to Root.
type Batch struct {
	Events []Event
	// Root is the state right after the last event, or a newer one that
	// differs from it in nothing that makes events.
	Root *Root
	// Resync tells that the events were computed as the difference of two
	// states, because the cursor fell behind or a snapshot was restored.
	Resync bool
	// Full tells that nothing was known of the state from which the reader
	// wanted to go on: the events are the whole state, and whatever the reader
	// remembers that is not among them is gone.
	Full bool
}

// Cursor reads the events of a machine. It belongs to one goroutine, needs no
// closing and never holds anybody up; it keeps the last state it returned
// from being collected.
type Cursor struct {
	m *Machine
	// root is the state that the reader knows once it has seen pending; nil if
	// it knows none.
	root    *Root
	pending []Event
	// epoch and seq name the next span of the ring.
	epoch, seq uint64
	// after hides events at or below it.
	after uint64
}

// Watch returns a cursor over the events above a revision. When the ring does
// not reach back that far, the first batch is the whole state, marked Full. A
// revision that the machine has not reached yet is allowed.
func (m *Machine) Watch(after uint64) *Cursor {
	m.ring.mu.RLock()
	defer m.ring.mu.RUnlock()
	c := &Cursor{m: m, epoch: m.ring.epoch, seq: m.ring.next(), after: after}
	if events, complete := m.ring.after(after); complete {
		c.pending = events
		c.root = m.root.Load()
	}
	return c
}

// WatchFrom returns a cursor over what changes after root, which the reader
// has read. It is exact however old the root is: `snapshot, then changes`
// without a gap.
func (m *Machine) WatchFrom(root *Root) *Cursor {
	m.ring.mu.RLock()
	defer m.ring.mu.RUnlock()
	c := &Cursor{m: m, root: root, epoch: m.ring.epoch, seq: m.ring.next()}
	if events, complete := m.ring.after(root.revision); complete && root.epoch == m.ring.epoch {
		c.pending = events
		c.root = m.root.Load()
		return c
	}
	// A difference is due. Next computes it, outside of the lock, because the
	// cursor names an epoch that is not the ring's.
	c.epoch = m.ring.epoch - 1
	return c
}

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Wait returns a channel that is closed when Next has events to return. Ask
// for it again after each Next.
func (c *Cursor) Wait() <-chan struct{} {
	r := &c.m.ring
	r.mu.RLock()
	defer r.mu.RUnlock()
	if c.root == nil || len(c.pending) > 0 || c.epoch != r.epoch || c.seq != r.next() {
		return closed
	}
	return r.wake
}

// Next returns what happened since the previous call. It never blocks; a batch
// without events means that nothing did.
func (c *Cursor) Next() Batch {
	r := &c.m.ring
	r.mu.RLock()
	root := c.m.root.Load()
	spans, complete := r.since(c.epoch, c.seq)
	c.epoch, c.seq = r.epoch, r.next()
	r.mu.RUnlock()

	b := Batch{Events: c.pending, Root: root}
	c.pending = nil
	switch {
	case c.root == nil, !complete && c.root.revision < c.after:
		// Second case: the reader knows a state that this machine has jumped
		// over, so there is nothing to compare with: rows that came and went in
		// between are known to the reader alone.
		b.Events, b.Resync, b.Full = Diff(nil, root), true, true
		c.after = 0
	case !complete:
		b.Events, b.Resync = append(b.Events, Diff(c.root, root)...), true
		// A restore may lead to revisions below the one waited for.
		c.after = 0
	case len(spans) == 1 && b.Events == nil && spans[0][0].Revision > c.after:
		b.Events = spans[0]
	default:
		for _, span := range spans {
			for _, e := range span {
				if e.Revision > c.after {
					b.Events = append(b.Events, e)
				}
			}
		}
	}
	c.root = root
	return b
}
