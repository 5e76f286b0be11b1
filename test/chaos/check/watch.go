package check

import (
	"fmt"
	"slices"
)

// Change is one change of one row as a watch showed it.
type Change struct {
	Revision uint64 `json:"revision"`
	Table    string `json:"table"`
	Key      string `json:"key"`
	Op       string `json:"op"`
	// Content stands for the row; equal rows have equal contents.
	Content string `json:"content,omitempty"`
}

func (c Change) row() string { return c.Table + "/" + c.Key }

func (c Change) String() string {
	return fmt.Sprintf("%s %s at revision %d", c.Op, c.row(), c.Revision)
}

// Batch is one message of a watch.
type Batch struct {
	// Revision is that of the state after the batch.
	Revision uint64 `json:"revision"`
	// Full: the changes are the whole state. Diff: they are the difference to
	// the state before, row by row, and what happened in between is left out;
	// the revision of a deletion is then the batch's.
	Full    bool     `json:"full,omitempty"`
	Diff    bool     `json:"diff,omitempty"`
	Changes []Change `json:"changes,omitempty"`
	At      int64    `json:"at"`
}

// Stream is one watch of one reader at one server. A reader that is cut off
// goes on with another stream after the last revision that it has.
type Stream struct {
	Reader  int     `json:"reader"`
	Server  int     `json:"server"`
	After   uint64  `json:"after"` // asked for; 0: the whole state
	Batches []Batch `json:"batches"`
	// Refused is set when a server did not take the revision to go on from.
	Refused string `json:"refused,omitempty"`
}

func (s Stream) name() string { return fmt.Sprintf("reader %d at server %d", s.Reader, s.Server) }

type place struct {
	revision uint64
	row      string
}

// Streams wants every stream in order, without duplicates and without gaps
// (compared with all other streams and with the acknowledged writes under
// table), equal to the others wherever they show the same, and resumable.
func Streams(streams []Stream, table string, ops []Op) []Violation {
	r := report{checker: "watch"}
	known, first := agreed(&r, streams)
	acknowledged := make(map[place]Op)
	for _, o := range ops {
		if o.writes() && o.Result == OK && o.Rev > 0 {
			acknowledged[place{o.Rev, table + "/" + o.Key}] = o
		}
	}
	ordered := inOrder(known)
	for _, s := range streams {
		if s.Refused != "" {
			r.add("%s could not go on after revision %d: %s", s.name(), s.After, s.Refused)
		}
		c := covered{stream: s, from: s.After, shown: make(map[place]bool)}
		c.follow(&r, ordered)
		for _, o := range acknowledged {
			at := place{o.Rev, table + "/" + o.Key}
			if c.covers(o.Rev) && !c.shown[at] {
				r.add("%s shows everything from %d to %d but not the acknowledged %s", s.name(), c.from, c.to, describe(o))
			}
		}
		for _, x := range ordered {
			if at := (place{x.Revision, x.row()}); c.covers(x.Revision) && !c.shown[at] {
				r.add("%s shows everything from %d to %d but not %s, which %s showed", s.name(), c.from, c.to, x, first[at])
			}
		}
	}
	return r.violations()
}

// agreed collects what incremental batches showed and who showed it first.
func agreed(r *report, streams []Stream) (map[place]Change, map[place]string) {
	known, first := make(map[place]Change), make(map[place]string)
	for _, full := range []bool{false, true} {
		for _, s := range streams {
			for _, b := range s.Batches {
				if (b.Full || b.Diff) != full {
					continue
				}
				for _, x := range b.Changes {
					if full && x.Op == "delete" {
						continue
					}
					at := place{x.Revision, x.row()}
					old, ok := known[at]
					switch {
					case !ok && !full:
						known[at], first[at] = x, s.name()
					case ok && old != x:
						r.add("%s shows %s as %s, %s as %s", first[at], old, old.Content, s.name(), x.Op+" "+x.Content)
					}
				}
			}
		}
	}
	return known, first
}

func inOrder(known map[place]Change) []Change {
	out := make([]Change, 0, len(known))
	for _, x := range known {
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Change) int {
		if a.Revision != b.Revision {
			if a.Revision < b.Revision {
				return -1
			}
			return 1
		}
		if a.row() < b.row() {
			return -1
		}
		return 1
	})
	return out
}

// covered is the part of the history that a stream claims to show in full: the
// revisions above from, up to to, except those that a later full batch jumped
// over.
type covered struct {
	stream   Stream
	from, to uint64
	gaps     [][2]uint64 // (a, b] jumped over
	shown    map[place]bool
}

func (c *covered) covers(rev uint64) bool {
	if rev <= c.from || rev > c.to {
		return false
	}
	for _, g := range c.gaps {
		if rev > g[0] && rev <= g[1] {
			return false
		}
	}
	return true
}

// follow walks the batches.
func (c *covered) follow(r *report, ordered []Change) {
	name := c.stream.name()
	at := c.stream.After
	started := c.stream.After > 0
	c.to = at
	for _, b := range c.stream.Batches {
		if b.Full {
			c.whole(r, b, ordered)
			if started {
				c.gaps = append(c.gaps, [2]uint64{min(at, b.Revision), b.Revision})
			} else {
				c.from = b.Revision
			}
			started, at, c.to = true, b.Revision, max(c.to, b.Revision)
			continue
		}
		if b.Revision < at {
			r.add("%s went back from revision %d to %d", name, at, b.Revision)
		}
		if b.Diff {
			c.difference(r, b, at, ordered)
			c.gaps = append(c.gaps, [2]uint64{min(at, b.Revision), b.Revision})
			started, at, c.to = true, b.Revision, max(c.to, b.Revision)
			continue
		}
		last := at
		for _, x := range b.Changes {
			p := place{x.Revision, x.row()}
			switch {
			case c.shown[p]:
				r.add("%s shows %s twice", name, x)
			case x.Revision <= at:
				r.add("%s shows %s although it was at revision %d already", name, x, at)
			case x.Revision > b.Revision:
				r.add("%s shows %s in a batch up to revision %d", name, x, b.Revision)
			case x.Revision < last:
				r.add("%s shows %s after a change of revision %d", name, x, last)
			}
			last = max(last, x.Revision)
			c.shown[p] = true
		}
		started, at = true, max(at, b.Revision)
		c.to = max(c.to, at)
	}
}

// whole wants a full batch to be the state at its revision, as far as the
// changes tell.
func (c *covered) whole(r *report, b Batch, ordered []Change) {
	has := make(map[string]uint64, len(b.Changes))
	for _, x := range b.Changes {
		has[x.row()] = x.Revision
	}
	for row, x := range newest(ordered, 0, b.Revision) {
		rev, there := has[row]
		switch {
		case x.Op == "delete" && there && rev <= x.Revision:
			r.add("%s got %s as part of the state at revision %d; it was deleted at %d", c.stream.name(), row, b.Revision, x.Revision)
		case x.Op != "delete" && rev < x.Revision:
			r.add("%s got the state at revision %d without %s", c.stream.name(), b.Revision, x)
		}
	}
}

// difference wants a batch to lead from the state at one revision to that of
// its own, as far as the changes tell.
func (c *covered) difference(r *report, b Batch, from uint64, ordered []Change) {
	has := make(map[string]Change, len(b.Changes))
	for _, x := range b.Changes {
		has[x.row()] = x
		if x.Revision > b.Revision || x.Op != "delete" && x.Revision <= from {
			r.add("%s got %s in the difference from revision %d to %d", c.stream.name(), x, from, b.Revision)
		}
	}
	before := newest(ordered, 0, from)
	for row, x := range newest(ordered, from, b.Revision) {
		got, there := has[row]
		switch {
		case x.Op != "delete" && (!there || got.Op == "delete" || got.Revision < x.Revision):
			r.add("%s got the difference from revision %d to %d without %s", c.stream.name(), from, b.Revision, x)
		case x.Op == "delete" && there && got.Op != "delete" && got.Revision <= x.Revision:
			r.add("%s got %s in the difference up to revision %d; it was deleted at %d", c.stream.name(), got, b.Revision, x.Revision)
		case x.Op == "delete" && !there && before[row].Op == "put":
			r.add("%s got the difference from revision %d to %d without %s", c.stream.name(), from, b.Revision, x)
		}
	}
}

// newest is the last change of each row above one revision and up to another.
func newest(ordered []Change, above, upTo uint64) map[string]Change {
	out := make(map[string]Change)
	for _, x := range ordered {
		if x.Revision > above && x.Revision <= upTo {
			out[x.row()] = x
		}
	}
	return out
}

// SetStream is a watch that sends the whole set every time, of things that
// have an id of their own each time they are made.
type SetStream struct {
	Server int        `json:"server"`
	Name   string     `json:"name"`
	Sets   [][]string `json:"sets"`
}

// Sets wants nothing to come back in a stream once it was gone from it.
func Sets(streams []SetStream) []Violation {
	r := report{checker: "snapshots"}
	for _, s := range streams {
		gone, last := make(map[string]int), make(map[string]bool)
		for n, ids := range s.Sets {
			now := make(map[string]bool, len(ids))
			for _, id := range ids {
				if at, ok := gone[id]; ok {
					r.add("%s: %s is back in message %d; it was gone in message %d", s.Name, id, n, at)
				}
				now[id] = true
			}
			for id := range last {
				if !now[id] {
					gone[id] = n
				}
			}
			last = now
		}
	}
	return r.violations()
}
