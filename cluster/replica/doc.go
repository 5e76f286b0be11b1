// Package replica runs one voter: Raft, its stores, the adapter between Raft
// and the state machine, and the proposer that turns single commands into
// group-committed log entries.
//
// It owns the data directory. It promises that a result it returns comes from
// an entry that a quorum stored and that this process's own state machine has
// applied, and it says of every error whether the command may still take
// effect (ErrUnknownOutcome) or certainly will not (ErrNotLeader, ErrBusy).
//
// It does not decide who may propose what, does not forward to other servers
// and knows nothing of sessions: that is cluster/engine's and the handlers'
// work.
//
// All methods may be called from any goroutine.
package replica
