package sim

import (
	"slices"
	"time"

	"trivet/fsm"
)

// watcher follows the state as a stream of changes, from server to server, and
// holds what it was told against what the server has.
type watcher struct {
	w      *world
	name   string
	at     *server
	boot   int
	cursor *fsm.Cursor
	// seen is the newest revision it knows; began says that it knows any.
	seen  uint64
	began bool
	rows  map[rowName]uint64
}

type rowName struct {
	table fsm.Table
	key   string
}

// act reads what there is, now and then on another server.
func (x *watcher) act() {
	w := x.w
	w.at(w.life.between(10*time.Millisecond, 2*time.Second), x.act)
	if x.at == nil || !x.at.lives(x.boot) || w.life.oneIn(15) {
		x.move()
	}
	if x.at == nil || x.at.paused {
		return
	}
	x.read()
}

// move goes on at some server.
func (x *watcher) move() {
	x.at = nil
	s := x.w.servers[x.w.life.n(servers)]
	if !s.alive || s.paused {
		return
	}
	x.w.counts.Moves++
	x.at, x.boot = s, s.boot
	if !x.began && x.w.life.oneIn(2) {
		root := s.machine.Root()
		x.take(root)
		x.cursor = s.machine.WatchFrom(root)
		return
	}
	x.cursor = s.machine.Watch(x.seen)
}

// take begins with a whole state.
func (x *watcher) take(root *fsm.Root) {
	x.rows = rowsOf(root)
	x.seen, x.began = root.Revision(), true
}

// read takes one batch.
func (x *watcher) read() {
	w := x.w
	b := x.cursor.Next()
	if w.Plant == SkipEvent && len(b.Events) > 0 && w.chance.oneIn(20) {
		b.Events = b.Events[1:]
	}
	if len(b.Events) > 0 {
		w.counts.Batches++
	}
	if b.Resync {
		w.counts.Resyncs++
	}
	switch {
	case b.Full:
		x.rows = make(map[rowName]uint64)
	case x.rows == nil:
		x.rows = make(map[rowName]uint64)
	}
	if !b.Resync {
		x.order(b)
	}
	for _, e := range b.Events {
		if e.Table == fsm.TableMeta {
			continue
		}
		name := rowName{e.Table, e.Key}
		if e.Op == fsm.Delete {
			delete(x.rows, name)
			continue
		}
		x.rows[name] = changeOf(e).modify
	}
	if b.Root.Revision() < x.seen && !b.Full {
		return // this server is not there yet
	}
	x.seen, x.began = b.Root.Revision(), true
	x.compare(b)
}

// order holds a batch of plain events against those of all servers: all of them,
// once, in order.
func (x *watcher) order(b fsm.Batch) {
	c := &x.w.canon
	var want []change
	for n := x.seen + 1; n <= b.Root.Revision() && n <= uint64(len(c.revisions)); n++ {
		want = append(want, c.revisions[n-1].events...)
	}
	got := make([]change, len(b.Events))
	for i, e := range b.Events {
		got[i] = changeOf(e)
	}
	if !slices.Equal(want, got) {
		x.w.violate("%s at %s was told %v from revision %d to %d, want %v", x.name, x.at.name, got, x.seen, b.Root.Revision(), want)
	}
}

// compare holds what the watcher knows against the state it leads to.
func (x *watcher) compare(b fsm.Batch) {
	want := rowsOf(b.Root)
	if len(want) != len(x.rows) {
		x.w.violate("%s at %s knows %d rows of revision %d, there are %d (resync %v, full %v)",
			x.name, x.at.name, len(x.rows), b.Root.Revision(), len(want), b.Resync, b.Full)
		return
	}
	for name, modify := range want {
		if x.rows[name] != modify {
			x.w.violate("%s at %s knows %v at %d, at revision %d it is of %d", x.name, x.at.name, name, x.rows[name], b.Root.Revision(), modify)
			return
		}
	}
}

// rowsOf lists all rows of which watches tell.
func rowsOf(root *fsm.Root) map[rowName]uint64 {
	out := make(map[rowName]uint64)
	for _, e := range fsm.Diff(nil, root) {
		if e.Table != fsm.TableMeta {
			out[rowName{e.Table, e.Key}] = changeOf(e).modify
		}
	}
	return out
}
