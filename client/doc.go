// Package client is the user's side of trivet: it finds a server, keeps a
// session, and serves the connections that intercepts bring.
//
// It owns contexts (which cluster, as whom), the connection to the servers
// with its failover, the client session with its reconnects, and intercepts
// with the local ends of their connections. It does not parse flags, print, or
// decide policy.
//
// # What it promises
//
//   - A Pool has one current server. When that is gone, hung for three seconds
//     or shutting down, the next one is dialled at once and then every 20 to
//     200 ms; calls in flight are sent again. Writes are numbered, so sending
//     one twice applies it once.
//   - A read through a Pool never shows less than an earlier one did, on
//     whichever server.
//   - A Session outlives every connection. It resumes under its id; only if the
//     manager does not know that any more it arrives anew, makes its intercepts
//     again and says so.
//   - Only addresses that one of the session's own intercepts names are ever
//     dialled. What a server asks for beyond that is refused and counted.
//   - Every queue is bounded: DialRequests in progress (256) and waiting
//     (1024, then the stream is not read, which makes the server hold them),
//     open connections (4096, then refused), events (1024, then those about
//     single connections are dropped and counted).
//
// # Concurrency
//
// Everything exported is safe for concurrent use. Pool.Close and Session.Close
// return when all goroutines of theirs have ended. A Session must be closed
// before its Pool.
//
// # Failure
//
// Errors are *errs.Error with a stable reason and mostly a hint, also those
// that came over the wire.
//
//	pool, err := client.Dial(ctx, context, client.Options{})
//	...
//	session, err := client.OpenSession(ctx, pool, client.SessionOptions{Name: "me@laptop", ...})
//	...
//	intercept, err := session.Intercept(ctx, client.InterceptSpec{Name: "api", Workload: "api", LocalPort: 8080})
//	for {
//		event, err := session.Next(ctx)
//		...
//	}
package client
