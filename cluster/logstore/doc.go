// Package logstore keeps what a voter must not forget: the Raft log, its term
// and vote, and its snapshots.
//
// It opens a raft-boltdb store and stands between it and Raft. It promises that
//
//   - what is read is what was written: every entry and every stable value
//     carries a checksum, and what does not match it never reaches Raft;
//   - a write either ends in time or the process does: a late one may still
//     land, and nobody could say whether this server has the entry;
//   - Raft never sees an error that it answers with a panic: the error goes to
//     the function given to Serve, and the goroutine of Raft ends;
//   - a directory that is damaged or in use is refused with a hint, before
//     anything is changed.
//
// It does not decide who is told of a sick disk: Problems says what is wrong,
// others act on it.
//
// All methods may be called from any goroutine. As Raft does, only one at a
// time appends or cuts the end of the log.
package logstore
