// Package engine is what a server's handlers use to write and to read: it
// finds the leader, forwards, holds while there is none, repeats safely after
// a failover, and makes an answer wait until this server's own state shows it.
//
// Writes: every command gets a number of this server's, so a repetition after
// an unknown outcome is applied once; a caller that numbers its own commands
// (a trivet client) is its own writer. A command that was refused is an
// *errs.Error with the state machine's reason.
//
// Reads: stale answers from the local state; default answers once the local
// state has reached what the caller saw last, or else after the leader was
// asked; linearizable always asks a leader that a quorum confirmed.
//
// All methods may be called from any goroutine and end with their context.
package engine
