// Package deathwatch starts an election as soon as the leader's process is
// known to be gone, instead of waiting for a timeout.
//
// Servers keep a connection to each other on which the one that accepted says
// who it is and then nothing more. When the one to the leader ends and a redial
// is refused, or another process answers there, the leader's process is gone: a
// listening socket lives exactly as long as it. A hang, a partition or a lost
// packet does not look like that; those are left to Raft's timeouts.
//
// One server's eyes are not enough, because a cut between it and the leader can
// look like that too. Whoever saw the end tells the other voters, with where its
// log ends; an election starts when a majority of the voters saw it, and by the
// one whose log goes furthest, because it cannot lose to the others.
//
// The election skips the pre-vote, so these things keep it from doing harm: the
// majority's evidence, the rank (the best goes first, the next waits), that who
// has voted for another stands back, and a limit of one election per second and
// term.
//
// A Watch may be used from any goroutine. What Reconcile starts ends with its
// context; Wait waits for it.
package deathwatch
