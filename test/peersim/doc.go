// Package peersim plays the published peers of telepresence.manager.Manager:
// agents and clients of the older generation (2024) and of the newer one, made
// from the published contract alone. It shares no code with what this project
// serves or runs, so that an error in one is not repeated in the other.
//
// A peer does what its stock counterpart does on its own: it arrives, keeps
// itself alive, opens its watches, reviews intercepts, answers dial requests and
// name questions, and tears itself down or comes back, each on the answers that
// make the stock one do so. What a user makes a stock peer do, a test calls.
//
//   - [OlderAgent]: any error of a call or stream ends its session; it departs
//     and arrives again on a later tick. A clean end of its dial, name or log
//     level stream leaves that function dead.
//   - [NewerAgent]: nothing ends its session; a broken watch is opened again
//     after ReconnectAgent.
//   - [OlderClient]: NotFound or Unavailable to a keepalive ends its session,
//     with a Depart that deletes it if it gets through; the session of a Depart
//     that did not is tried again.
//   - [NewerClient]: a keepalive that fails makes it dial again and call
//     ReconnectClient.
//
// A peer belongs to who started it, lives until its context ends, Close or Kill,
// and has no goroutine left after the latter two. It keeps a bounded record of what it
// saw, on which tests wait. What it takes in is bounded: one dial stream is worked
// off by at most Limits.Tunnels tunnels at a time, and what is beyond is refused
// and counted by the record. A peer costs two to seven goroutines beside those
// that gRPC has for its streams, so that thousands fit into a process; many may
// share a connection (see [Shared]).
package peersim
