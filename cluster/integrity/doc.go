// Package integrity finds a server whose state differs from that of the others
// and heals it.
//
// Every state machine remembers the digests of the revisions that it passed. A
// Monitor compares them with those of its peers at equal revisions and equal
// schemas every few seconds. The digest that a majority of the voters
// has is the right one; the server that has another one stops serving, takes a
// peer's state over and serves again when its digest is that of the majority.
// Log, term and vote are never touched: the log is what the state has to follow.
//
// A difference without a majority is an alarm for the operator and nothing
// more.
//
// A Monitor is run by one goroutine and asked by any.
package integrity
