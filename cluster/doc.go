// Package cluster is one server of the manager: it opens the main port, runs
// the replica, finds its peers, serves the gRPC services and keeps the
// leader's actors running while it leads.
//
// What it promises: an acknowledged write survives the loss of any minority of
// servers; an answer never shows less than its caller has seen; nothing is
// served to a caller whose role the authorisation table does not name.
//
// The parts live in packages of their own: replica (Raft), engine (writing and
// reading), attach and exchange (streams and tunnels), peers and deathwatch
// (the other servers), authz, and api (the handlers). This package only wires
// them and owns their lifetimes: Start starts everything, Run waits, and on
// the way out leadership is handed over first, then streams end, then Raft.
package cluster
