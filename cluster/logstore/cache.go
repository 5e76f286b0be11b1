package logstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// entryOverhead is about what an entry takes beside its data.
const entryOverhead = 128

// cache holds the newest entries, without a gap, up to a number and a size.
// Followers that keep up and the state machine read nearly only these.
type cache struct {
	mu       sync.RWMutex
	ring     []raft.Log // entry i is in slot i % len(ring); guarded by mu
	lo, next uint64     // entries lo to next-1 are held; guarded by mu
	bytes    int        // guarded by mu
	maxBytes int
}

func newCache(entries, bytes int) *cache {
	return &cache{ring: make([]raft.Log, entries), maxBytes: bytes}
}

func weight(l *raft.Log) int { return len(l.Data) + len(l.Extensions) + entryOverhead }

func (c *cache) slot(i uint64) *raft.Log { return &c.ring[i%uint64(len(c.ring))] }

// get copies an entry out; its data is shared.
func (c *cache) get(index uint64, l *raft.Log) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if index < c.lo || index >= c.next {
		return false
	}
	*l = *c.slot(index)
	return true
}

// add takes entries that were stored. What does not follow on the newest one
// replaces everything.
func (c *cache) add(logs []*raft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if l.Index != c.next || c.lo == c.next {
			c.clear()
			c.lo, c.next = l.Index, l.Index
		}
		for c.lo < c.next && (c.bytes+weight(l) > c.maxBytes || c.next-c.lo == uint64(len(c.ring))) {
			c.dropOldest()
		}
		if weight(l) > c.maxBytes {
			c.lo, c.next = 0, 0
			continue
		}
		*c.slot(l.Index) = *l
		c.next++
		c.bytes += weight(l)
	}
}

// remove forgets the entries from first to last, and all that would be cut off
// from the newest by that.
func (c *cache) remove(first, last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lo == c.next || last < c.lo || first >= c.next:
	case last >= c.next-1:
		for c.next > max(first, c.lo) {
			c.next--
			c.drop(c.next)
		}
	default:
		for c.lo <= last {
			c.dropOldest()
		}
	}
}

// dropOldest forgets the oldest entry; the caller holds mu.
func (c *cache) dropOldest() {
	c.drop(c.lo)
	c.lo++
}

func (c *cache) drop(index uint64) {
	s := c.slot(index)
	c.bytes -= weight(s)
	*s = raft.Log{}
}

func (c *cache) clear() {
	for c.lo < c.next {
		c.dropOldest()
	}
}

func (c *cache) size() (entries, bytes int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return int(c.next - c.lo), c.bytes
}
