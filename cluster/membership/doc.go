// Package membership changes who belongs to the cluster's Raft configuration:
// it takes servers in, first without a vote until they have caught up, takes
// them out, and replaces a dead one by a new one while writes go on.
//
// It runs on the leader, one change at a time, and keeps two promises: a change
// that would leave the cluster without a reachable majority is refused, and one
// that was interrupted anywhere, by the death of any process, leaves a
// configuration that works; asked again, it goes on from there.
//
// It decides about servers, not about people: who may ask is checked by the
// callers. All methods may be called from any goroutine.
package membership
