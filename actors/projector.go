package actors

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// projectorBudget bounds the work of one turn, in rows of sessions; an
	// intercept may need a spawn and counts for interceptCost of them.
	projectorBudget = 2048
	interceptCost   = 32
	// deferredHint is the pause before a hint that found a full mailbox is
	// offered again.
	deferredHint = 50 * time.Millisecond
)

// projectorMsg is what the projector receives.
type projectorMsg interface{ isProjectorMsg() }

type (
	// stateMoved: the cursor has something.
	stateMoved struct{}
	// kicked: something is in Leader.owners or Leader.looks.
	kicked struct{}
	// goOn continues work that was more than one turn's.
	goOn struct{}
	// retryHints offers deferred hints again.
	retryHints struct{}
)

func (stateMoved) isProjectorMsg() {}
func (kicked) isProjectorMsg()     {}
func (goOn) isProjectorMsg()       {}
func (retryHints) isProjectorMsg() {}

// interceptEntry is a live intercept actor and which row it is of.
type interceptEntry struct {
	ref     rt.Ref[interceptMsg]
	created uint64
}

// directory holds the intercept actors by id. It outlives an incarnation of
// the projector, as the actors do; only the projector touches it.
type directory map[string]interceptEntry

// rowKey names a row to be compared with what is kept for it.
type rowKey struct {
	table fsm.Table
	id    string
}

// projector follows the state and keeps what the leader has for each row in
// step with it. It never looks at what an event says, only at which row it
// names: the row itself is read from the newest state. So a start, a change
// and a resynchronisation are the same work on more or fewer rows.
type projector struct {
	l      *Leader
	cursor *fsm.Cursor

	// changed waits for its turn, oldest first, and may name a row twice. The
	// cursor is not read before it is empty: the ring of events bounds it, and
	// what the ring no longer has comes as a difference.
	changed []rowKey
	// initial is what was there when this incarnation started, in the order
	// in which it is brought up.
	initial []rowKey
	loading bool // ready is not told yet
	onward  bool // a goOn is on its way
	waiting bool // a stateMoved is on its way

	// deferred are the intercepts whose mailbox had no room.
	deferred map[string]struct{}
	retrying bool // a retryHints is on its way
}

// Start reads the whole state and begins to follow it.
func (p *projector) Start(ctx *rt.Ctx[projectorMsg]) error {
	self := ctx.Self()
	p.l.projector.Store(&self)
	root := p.l.cfg.Replicator.Root()
	p.cursor = p.l.cfg.Replicator.Watch(root.Revision())
	p.deferred = make(map[string]struct{})
	p.loading = true
	p.enlist(root)
	p.turn(ctx)
	return nil
}

// enlist puts every row on the list, intercepts first, and every actor and
// entry whose row may be gone.
func (p *projector) enlist(root *fsm.Root) {
	var clients []rowKey
	for row := range root.Intercepts {
		p.initial = append(p.initial, rowKey{fsm.TableIntercepts, row.Id})
	}
	for row := range root.Sessions {
		key := rowKey{fsm.TableSessions, row.Id}
		if row.Kind == commandv1.SessionKind_SESSION_KIND_CLIENT {
			clients = append(clients, key)
		} else {
			p.initial = append(p.initial, key)
		}
	}
	p.initial = append(p.initial, clients...)
	p.enlistKnown(root)
}

// enlistKnown puts those rows on the list that the leader knows and the state
// does not.
func (p *projector) enlistKnown(root *fsm.Root) {
	for _, id := range slices.Sorted(maps.Keys(p.l.directory)) {
		if _, ok := root.Intercept(id); !ok {
			p.changed = append(p.changed, rowKey{fsm.TableIntercepts, id})
		}
	}
	for _, id := range p.l.sessions.without(func(id string) bool {
		_, ok := root.Session(id)
		return ok
	}) {
		p.changed = append(p.changed, rowKey{fsm.TableSessions, id})
	}
}

// Handle serves one message.
func (p *projector) Handle(ctx *rt.Ctx[projectorMsg], m projectorMsg) error {
	switch m.(type) {
	case stateMoved:
		p.waiting = false
		p.read()
	case kicked:
	case goOn:
		p.onward = false
	case retryHints:
		p.retrying = false
		p.retry()
	}
	p.turn(ctx)
	return nil
}

// Stop has nothing to release: the group stops the actors.
func (*projector) Stop(*rt.Ctx[projectorMsg], rt.Reason) {}

// follow has the cursor waited for.
func (p *projector) follow(ctx *rt.Ctx[projectorMsg]) {
	p.waiting = true
	moved := p.cursor.Wait()
	ctx.Go("watch", func(ctx context.Context) projectorMsg {
		_ = rt.Await(ctx, moved, nil) // an error means that nobody listens
		return stateMoved{}
	})
}

// read takes what the cursor has.
func (p *projector) read() {
	batch := p.cursor.Next()
	if batch.Resync {
		p.l.counters.resyncs.Add(1)
	}
	for _, e := range batch.Events {
		if e.Table == fsm.TableSessions || e.Table == fsm.TableIntercepts {
			p.changed = append(p.changed, rowKey{e.Table, e.Key})
		}
	}
	if batch.Full {
		p.enlistKnown(batch.Root)
	}
}

// turn works until the budget is spent and arranges for another turn if
// something is left. What has changed goes before what is still to be loaded.
func (p *projector) turn(ctx *rt.Ctx[projectorMsg]) {
	root := p.l.cfg.Replicator.Root()
	p.lookAtOwners(root)
	budget := projectorBudget
	p.changed, budget = p.work(root, p.changed, budget)
	p.initial, _ = p.work(root, p.initial, budget)
	if p.loading && len(p.initial) == 0 {
		p.loading = false
		p.l.becomeReady()
	}
	if len(p.deferred) > 0 && !p.retrying {
		p.retrying = true
		ctx.After(deferredHint, retryHints{})
	}
	if len(p.changed) == 0 && !p.waiting {
		p.follow(ctx)
	}
	if len(p.changed)+len(p.initial) > 0 && !p.onward {
		p.onward = true
		// Through the queue, so that what came meanwhile has its turn.
		ctx.After(0, goOn{})
	}
}

// work serves keys while budget lasts and returns the rest of both.
func (p *projector) work(root *fsm.Root, keys []rowKey, budget int) ([]rowKey, int) {
	for i, key := range keys {
		if budget <= 0 {
			return keys[i:], budget
		}
		switch key.table {
		case fsm.TableIntercepts:
			p.intercept(root, key.id)
			budget -= interceptCost
		default:
			p.session(root, key.id)
			budget--
		}
	}
	return nil, budget
}

// session brings the table in step with the row.
func (p *projector) session(root *fsm.Root, id string) {
	if row, ok := root.Session(id); ok {
		p.l.sessions.put(row, row.CreateRevision <= p.l.startRevision)
		return
	}
	p.l.sessions.remove(id)
	p.l.attachments.forget(id)
}

// lookAtOwners passes on which owners came or went, and which intercepts are
// to be looked at for other reasons.
func (p *projector) lookAtOwners(root *fsm.Root) {
	// In the order of the ids, so that equal histories take equal courses.
	for _, session := range slices.Sorted(maps.Keys(p.l.owners.take())) {
		for row := range root.InterceptsOf(session) {
			p.changed = append(p.changed, rowKey{fsm.TableIntercepts, row.Id})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.l.looks.take())) {
		p.changed = append(p.changed, rowKey{fsm.TableIntercepts, id})
	}
}

// intercept sees to it that the row has one actor and that it looks.
func (p *projector) intercept(root *fsm.Root, id string) {
	entry, known := p.l.directory[id]
	row, ok := root.Intercept(id)
	if known && (!ok || row.CreateRevision != entry.created) {
		entry.ref.RequestStop()
		delete(p.l.directory, id)
		known = false
	}
	if !ok {
		delete(p.deferred, id)
		p.l.quarantine.remove(id)
		return
	}
	if known {
		switch err := entry.ref.Offer(interceptHinted{}); {
		case err == nil:
			p.l.counters.hints.Add(1)
			return
		case !errors.Is(err, rt.ErrStopped) || !isDone(entry.ref.Done()):
			// Full, or ending: only when it has ended is it known why.
			p.l.counters.hintsDeferred.Add(1)
			p.deferred[id] = struct{}{}
			return
		}
		delete(p.l.directory, id)
	}
	p.spawn(row)
}

// spawn starts the actor of a row, unless the row is in quarantine; the
// janitor brings it back from there.
func (p *projector) spawn(row *commandv1.InterceptRow) {
	if p.l.quarantine.has(row.Id) {
		return
	}
	ref, err := p.l.spawnIntercept(row)
	if err != nil {
		return // the tree is stopping
	}
	p.l.directory[row.Id] = interceptEntry{ref: ref, created: row.CreateRevision}
}

// isDone says whether a channel is closed.
func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// retry puts the deferred hints back on the list.
func (p *projector) retry() {
	for _, id := range slices.Sorted(maps.Keys(p.deferred)) {
		p.changed = append(p.changed, rowKey{fsm.TableIntercepts, id})
	}
	clear(p.deferred)
}
