// Package link is a node's way to the manager: connections to its servers, and
// the one conversation that the node as a whole has with it.
//
// # Servers
//
// Any server will do, so a Pool keeps a current one that everybody uses. Who
// sees a stream or a call fail for the server's sake says so (Pool.Failed), and
// the pool moves on to the next; the first to say so decides. A server that
// hangs ends no connection, so Pool.Run asks the servers in use for a sign of
// life once a second and cuts off one that stays silent for two. (gRPC's own
// keepalive cannot: it never pings more often than every ten seconds.)
//
// Each server has two connections, one for control and one for the bytes of
// tunnels, so that a full pipe of the latter delays no order. All calls carry
// the highest revision that any answer has shown, so that a server which lags
// behind does not show an older state than the last one did.
//
// # Orders
//
// Control keeps one NodeControl.Sync stream open, reports what runs here, and
// hands on what the manager wishes. A Ledger fences the wishes: it keeps the
// highest on disk and refuses, and counts, lower ones and those of another
// cluster. Without a manager, and after a restart, the last orders hold.
//
// # Concurrency
//
// Pool, Server and Ledger may be used from any goroutine. Control.Run and
// Pool.Run are loops that end with their context; nothing else starts a
// goroutine that outlives its call, except gRPC for the connections, which end
// with Pool.Close.
package link
