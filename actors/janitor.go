package actors

import (
	"context"
	"time"

	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// maxAwakeSessions bounds the session actors that are awake at once. When
	// a whole site has gone silent, the rest comes due again a tick later.
	maxAwakeSessions = 2048
	// maxExpiries is the number of sessions in one ExpireSessions command.
	maxExpiries = 256
	// expiryDelay lets the sessions that a tick has woken come together.
	expiryDelay = 10 * time.Millisecond
)

// janitorMsg is what the janitor receives.
type janitorMsg interface{ isJanitorMsg() }

type (
	// ticked comes every Limits.Tick.
	ticked struct{}
	// expiry is a session actor's wish.
	expiry struct {
		item *commandv1.ExpireSessions_Item
		from rt.Ref[sessionMsg]
	}
	// gathered ends the wait for more expiries.
	gathered struct{}
	// expired is how a batch has ended.
	expired struct {
		batch   []expiry
		outcome outcome
	}
)

func (ticked) isJanitorMsg()   {}
func (expiry) isJanitorMsg()   {}
func (gathered) isJanitorMsg() {}
func (expired) isJanitorMsg()  {}

// janitor drives the clock and the wheels, wakes sessions that are due,
// proposes expiries in batches, one batch at a time, and ends quarantines.
type janitor struct {
	l         *Leader
	wishes    []expiry // at most maxAwakeSessions
	gathering bool     // a gathered is on its way
	proposing bool     // a batch is on its way
}

// askJanitor passes a wish on; false when that is not possible now.
func (l *Leader) askJanitor(e expiry) bool {
	ref := l.janitor.Load()
	return ref != nil && ref.Offer(e) == nil
}

// Start begins to tick. Wishes that an earlier incarnation held are repeated
// by the actors that had them.
func (j *janitor) Start(ctx *rt.Ctx[janitorMsg]) error {
	self := ctx.Self()
	j.l.janitor.Store(&self)
	j.tick(ctx)
	return nil
}

// Handle serves one message.
func (j *janitor) Handle(ctx *rt.Ctx[janitorMsg], m janitorMsg) error {
	switch m := m.(type) {
	case ticked:
		j.tick(ctx)
	case expiry:
		j.wishes = append(j.wishes, m)
		j.gather(ctx)
	case gathered:
		j.gathering = false
		j.propose(ctx)
	case expired:
		j.answer(m)
		j.proposing = false
		j.gather(ctx)
	}
	return nil
}

// Stop has nothing to release.
func (*janitor) Stop(*rt.Ctx[janitorMsg], rt.Reason) {}

// tick is the pulse of the leader. A pause comes first: until the clock knows
// of it, silence may be our own.
func (j *janitor) tick(ctx *rt.Ctx[janitorMsg]) {
	ctx.After(j.l.cfg.Limits.Tick, ticked{})
	if gap := j.l.clock.tick(); gap > 0 {
		j.l.counters.pauses.Add(1)
		j.l.counters.paused.Add(int64(gap))
		ctx.Logger().Warn("this process was paused; all deadlines move", "gap", gap)
	}
	now := j.l.clock.now()
	room := maxAwakeSessions - int(j.l.counters.awake.Load())
	for _, s := range j.l.sessions.due(now, room) {
		j.l.wakeSession(s)
	}
	if ids := j.l.quarantine.release(now); len(ids) > 0 {
		for _, id := range ids {
			j.l.looks.add(id)
		}
		j.l.kickProjector()
	}
}

// gather waits a moment for more wishes, unless there are enough or a batch is
// on its way.
func (j *janitor) gather(ctx *rt.Ctx[janitorMsg]) {
	switch {
	case j.proposing || len(j.wishes) == 0:
	case len(j.wishes) >= maxExpiries:
		j.propose(ctx)
	case !j.gathering:
		j.gathering = true
		ctx.After(expiryDelay, gathered{})
	}
}

// propose sends the next batch on its way.
func (j *janitor) propose(ctx *rt.Ctx[janitorMsg]) {
	if j.proposing || len(j.wishes) == 0 {
		return
	}
	n := min(len(j.wishes), maxExpiries)
	batch := append([]expiry(nil), j.wishes[:n]...)
	rest := copy(j.wishes, j.wishes[n:])
	clear(j.wishes[rest:])
	j.wishes = j.wishes[:rest]
	j.proposing = true
	l := j.l
	ctx.Go("expire", func(ctx context.Context) janitorMsg {
		return expired{batch: batch, outcome: l.expire(ctx, batch)}
	})
}

// answer tells the actors how their batch has ended. Their mailboxes have
// room: each waits for one answer.
func (j *janitor) answer(m expired) {
	for _, e := range m.batch {
		// An actor that has ended meanwhile needs no answer.
		_ = e.from.Offer(sessionMsg{m.outcome})
	}
}

// expire proposes to expire those of the batch that are still silent once a
// quorum has confirmed this leader.
func (l *Leader) expire(ctx context.Context, batch []expiry) outcome {
	if !l.confirm(ctx) {
		return outcomeUnknown
	}
	items := make([]*commandv1.ExpireSessions_Item, 0, len(batch))
	for _, e := range batch {
		if l.sessions.overdue(e.item.SessionId, e.item.SeenModifyRevision) {
			items = append(items, e.item)
		}
	}
	l.counters.expiriesDropped.Add(uint64(len(batch) - len(items)))
	if len(items) == 0 {
		return outcomeRefused
	}
	l.counters.expiriesProposed.Add(uint64(len(items)))
	out := l.propose(ctx, []*commandv1.Command{{Op: &commandv1.Command_ExpireSessions{
		ExpireSessions: &commandv1.ExpireSessions{Items: items},
	}}})
	root := l.cfg.Replicator.Root()
	l.counters.expired.Add(gone(root, items))
	return out
}

// gone counts the sessions that the state no longer has as they were seen.
func gone(root *fsm.Root, items []*commandv1.ExpireSessions_Item) (n uint64) {
	for _, item := range items {
		row, ok := root.Session(item.SessionId)
		if !ok || row.CreateRevision > item.SeenModifyRevision {
			n++
		}
	}
	return n
}
