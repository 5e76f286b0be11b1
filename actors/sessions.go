package actors

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// sessionShards spreads the locks of the session table. A Remain holds one for
// a map look-up.
const sessionShards = 64

// sessions holds, for each session, its row as last seen and the memory of its
// actor. An actor with nothing pending is passive: it is this entry and
// nothing else. What reaches it while it is passive (Remain, attachments, a
// changed row) is decided on the spot, under the lock of its shard, by the
// same decide functions; only a passed deadline makes it active, see janitor.
//
// All methods are safe for concurrent use and never block for longer than
// another one's work on the same shard.
type sessions struct {
	clock  *clock
	lim    *Limits
	seed   maphash.Seed
	shards [sessionShards]sessionShard
}

type sessionShard struct {
	mu      sync.Mutex
	rows    map[string]*session // guarded by mu
	wheel   wheel               // guarded by mu
	agents  int                 // guarded by mu
	clients int                 // guarded by mu
}

// session is one entry; guarded by its shard's lock.
type session struct {
	row    *commandv1.SessionRow
	memory sessionMemory
	tick   int64 // of its next look in the wheel; 0: none
	active bool  // an actor has been woken for it
	gone   bool  // it left the table; entries in the wheel may remain
}

// newSessions makes an empty table.
func newSessions(c *clock, lim *Limits) *sessions {
	t := &sessions{clock: c, lim: lim, seed: maphash.MakeSeed()}
	for i := range t.shards {
		t.shards[i].rows = make(map[string]*session)
		t.shards[i].wheel.grain = lim.Tick
	}
	return t
}

func (t *sessions) shard(id string) *sessionShard {
	return &t.shards[maphash.String(t.seed, id)%sessionShards]
}

// put takes in a row. Inherited says that it was there when the leader
// started. It returns true when the session is new to the table.
func (t *sessions) put(row *commandv1.SessionRow, inherited bool) bool {
	now := t.clock.now()
	sh := t.shard(row.Id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[row.Id]
	if s != nil && s.row.CreateRevision != row.CreateRevision {
		sh.drop(s) // an id may come back: that of an agent is its pod's
		s = nil
	}
	if s != nil {
		if row.ModifyRevision > s.row.ModifyRevision {
			s.row = row
			t.decide(sh, s, now, sessionEvent{Kind: sessionChanged})
		}
		return false
	}
	s = &session{row: row, memory: sessionMemory{Inherited: inherited}}
	if !inherited {
		s.memory.Mark = now
	}
	sh.rows[row.Id] = s
	sh.count(row, 1)
	t.decide(sh, s, now, sessionEvent{})
	return true
}

// remove forgets a session. An active actor finds out by its next decision.
func (t *sessions) remove(id string) {
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.rows[id]; s != nil {
		sh.drop(s)
	}
}

// without returns the ids in the table for which has returns false.
func (t *sessions) without(has func(id string) bool) []string {
	var ids []string
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		for id := range sh.rows {
			if !has(id) {
				ids = append(ids, id)
			}
		}
		sh.mu.Unlock()
	}
	slices.Sort(ids)
	return ids
}

// event lets something happen to a session; false: unknown here.
func (t *sessions) event(id string, ev sessionEvent) bool {
	sh := t.shard(id)
	now := t.clock.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[id]
	if s == nil {
		return false
	}
	t.decide(sh, s, now, ev)
	return true
}

// touch is event for a Remain. activity is when the peer was last active, by
// the wall clock in unix nanoseconds, wall is that clock now; 0: now.
func (t *sessions) touch(id string, activity, wall int64) bool {
	now := t.clock.now()
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[id]
	if s == nil {
		return false
	}
	at := now
	// An agent's Remain says that it lives. A client's may say how long its
	// user has been idle; a time before the session existed is that of a
	// clock that is wrong, and then the call itself is the activity.
	client := s.row.Kind == commandv1.SessionKind_SESSION_KIND_CLIENT
	if client && activity != 0 && activity < wall && activity >= s.row.CreatedAt {
		at = now - instant(wall-activity)
	}
	t.decide(sh, s, now, sessionEvent{Kind: sessionTouched, At: at})
	return true
}

// decide runs the decide function on the entry's own row for an event that
// cannot make a session expire, and sees to the next look.
func (t *sessions) decide(sh *sessionShard, s *session, now instant, ev sessionEvent) {
	s.memory = s.memory.observe(s.row, now, ev, t.lim)
	if !s.active {
		sh.wheel.schedule(s, sessionDeadline(s.row, s.memory, t.lim))
	}
}

// due advances the wheels to now and returns the ids of up to limit sessions
// whose deadline has passed, marked active: whoever gets an id must answer
// with passivate. The others stay due.
func (t *sessions) due(now instant, limit int) []dueSession {
	var (
		out   []dueSession
		looks []*session
	)
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		looks = sh.wheel.advance(now, looks[:0])
		for _, s := range looks {
			if s.gone || s.active {
				continue
			}
			deadline := sessionDeadline(s.row, s.memory, t.lim)
			if now > deadline && now >= s.memory.RetryAt && len(out) < limit {
				s.active = true
				out = append(out, dueSession{id: s.row.Id, kind: s.row.Kind})
				continue
			}
			sh.wheel.schedule(s, max(deadline, s.memory.RetryAt))
		}
		clear(looks)
		sh.mu.Unlock()
	}
	// The shards have another order in each process.
	slices.SortFunc(out, func(a, b dueSession) int { return strings.Compare(a.id, b.id) })
	return out
}

// dueSession names a session whose deadline has passed.
type dueSession struct {
	id   string
	kind commandv1.SessionKind
}

// step is the decision of an active actor, on the newest state.
func (t *sessions) step(id string, root *fsm.Root, ev sessionEvent) decision {
	now := t.clock.now()
	row, _ := root.Session(id)
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[id]
	if s == nil {
		return decision{Done: true}
	}
	if row == nil || row.CreateRevision != s.row.CreateRevision {
		// Gone, unless the entry is of a later row under the same id.
		if s.row.ModifyRevision <= root.Revision() {
			row = nil
			sh.drop(s)
		} else {
			row = s.row
		}
	}
	if row != nil && row.ModifyRevision > s.row.ModifyRevision {
		s.row = row
		s.memory = s.memory.observe(row, now, sessionEvent{Kind: sessionChanged}, t.lim)
	}
	var d decision
	s.memory, d = decideSession(row, s.memory, now, ev, t.lim)
	return d
}

// forgetAsked takes an expiry that was asked for as not answered.
func (t *sessions) forgetAsked(id string) {
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s := sh.rows[id]; s != nil {
		s.memory.Asked = 0
	}
}

// overdue says whether the session as seen at revision is still beyond its
// deadline: the last look before its expiry is proposed.
func (t *sessions) overdue(id string, revision uint64) bool {
	now := t.clock.now()
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[id]
	return s != nil && s.row.ModifyRevision == revision &&
		now > sessionDeadline(s.row, s.memory, t.lim)
}

// passivate takes a session back from its actor, which is not woken for it
// again before the deadline has passed, nor sooner than after pause.
func (t *sessions) passivate(id string, pause time.Duration) {
	now := t.clock.now()
	sh := t.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	s := sh.rows[id]
	if s == nil || !s.active {
		return
	}
	s.active = false
	s.memory.Asked = 0
	s.memory.RetryAt = max(s.memory.RetryAt, now.add(pause))
	sh.wheel.schedule(s, max(sessionDeadline(s.row, s.memory, t.lim), s.memory.RetryAt))
}

// size returns the numbers of agent and client sessions.
func (t *sessions) size() (agents, clients int) {
	for i := range t.shards {
		sh := &t.shards[i]
		sh.mu.Lock()
		agents += sh.agents
		clients += sh.clients
		sh.mu.Unlock()
	}
	return agents, clients
}

// drop takes an entry out of the shard, which must be locked.
func (sh *sessionShard) drop(s *session) {
	s.gone = true
	delete(sh.rows, s.row.Id)
	sh.count(s.row, -1)
}

// count keeps the numbers of the shard, which must be locked.
func (sh *sessionShard) count(row *commandv1.SessionRow, by int) {
	if row.Kind == commandv1.SessionKind_SESSION_KIND_CLIENT {
		sh.clients += by
	} else {
		sh.agents += by
	}
}
