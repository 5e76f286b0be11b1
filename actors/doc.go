// Package actors is what the leading server does by itself: it expires
// sessions, takes the steal back from owners that are gone, gives it back when
// they return, and ends leases.
//
// # What it owns
//
// One tree of actors per term of leadership, made by StartLeader and stopped
// as a unit:
//
//	leader@T
//	├─ projector               follows the state; keeps the intercepts' actors
//	├─ agents/<session>        awake only while an expiry is under way
//	├─ clients/<session>       likewise
//	├─ intercepts/<id>         one for each row
//	└─ janitor                 tick, deadlines, batches of expiries, quarantine
//
// The state machine says what is; this package says what must be done about
// it. It holds nothing that the next leader could not rebuild: when each
// session was last heard of, which streams the servers say they hold, and what
// it is about to propose. A new leader starts with nothing of it and gives
// everybody a full period.
//
// It does not own streams, the log, or the time: it proposes commands through
// Replicator, which the server implements, and has no other effect.
//
// # Decisions
//
// Each decision is a pure function in a file of its own: decideAgent,
// decideClient and decideIntercept take a row, a memory, the time and an
// event, and return the new memory and what to do. The actors execute that and
// nothing else. They are told that something may have changed, never what: a
// message that gets lost costs time, not correctness.
//
// # Passive sessions
//
// Two hundred thousand sessions must not make a failover slow, and nearly all
// of them only ever wait. So a session's actor is passive until its deadline
// has passed: an entry of less than 200 bytes in a sharded table, which Remain,
// attachments and changes of the row update in place by the same decide
// functions, and a place in its shard's timing wheel. Moving a deadline later
// touches only the entry. When the wheel finds a deadline that has passed, the
// janitor wakes the actor, which asks for the expiry, waits for the answer and
// goes to sleep again or ends with its row. So a row that makes its actor
// crash is quarantined alone, and an idle cluster has no session actor at all.
//
// # Fencing
//
// Every command carries the term under which it was decided and the revision
// of the row that was seen. A refusal for the term stops the tree; a refusal
// for the revision, and an outcome that is not known, make the actor read the
// row again and decide again. No expiry is proposed unless a quorum has just
// confirmed this leader and the deadline is still passed after that.
//
// # Time
//
// Deadlines run by the monotonic clock without the time for which this process
// was paused (see clock); only leases compare with the wall clock, because
// they are given as wall-clock times.
//
// # Concurrency and failure
//
// The methods of Leader may be called from any goroutine and do not block,
// except Stop. Every queue is bounded: the janitor's mailbox takes as many
// expiries as there may be awake sessions, intercepts coalesce hints, and what
// is waiting for the projector is a set of ids. An actor that fails restarts
// after a backoff; one that keeps failing is quarantined and its row left
// alone for a minute; too many of those in a group, or a projector or janitor
// that keeps failing, stop the tree and reach Config.OnEscalate, whereupon the
// server hands leadership over.
package actors
