// Package sim runs a whole manager by hand: three servers, their clients and
// the network between them in one goroutine, in an order and at a time that a
// seed chooses, tens of thousands of steps per second.
//
// # What is real and what is modelled
//
// Real: the state machine of each server (package fsm), the batching of
// proposals (replica.Batcher), the leader's tree of actors with projector,
// janitor and decide functions (package actors) on the actor runtime, which
// runs on an rt.Stepper, and the servers' views of each other's streams
// (attach.View). Modelled: the log (terms, elections, replication, commits,
// snapshots; see raft.go), the forwarding of writes and keepalives, the
// connections, and the peers: agents, clients and writers of configuration.
//
// Each simulated server has a rt.Stepper, hence its own queue of things to do
// and its own wall clock. A step is one message handled by one actor, one timer,
// one continuation of a waiting worker, or one event of the model, such as a
// message that arrives. What can be done next is always chosen at random.
//
// # Faults
//
// Servers crash and restart from log and snapshot, pause and go on believing
// what they believed, lag behind, install snapshots, lose leadership by
// partition (of either direction), by pause, and for no reason; messages are
// delayed, reordered, lost and doubled; wall clocks differ. Peers die silently,
// depart, move from server to server, let streams end and come back.
//
// # What is checked
//
// While it runs: equal results, events and digests at equal revisions on all
// servers; each write applied at most once, and not lost once acknowledged;
// configuration as a model of five lines says; commands of an old term without
// effect; no two intercepts that conflict; no session expired before its time,
// also across failovers; watches in order, without gap or repetition, also
// across servers and snapshots. At the end, when nothing disturbs any more:
// every intercept and session is where its inputs say, and when all peers have
// fallen silent, every session goes.
//
// # Use
//
// A Rig runs seeds one after the other. Equal options give equal runs, to the
// last step, in every process; Result.Hash tells. A Bug in the Options plants a
// violation, by which the checks themselves are tested.
package sim
