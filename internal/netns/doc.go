// Package netns runs code in another network namespace and makes sockets
// there.
//
// A socket belongs for life to the namespace its thread was in when it was
// made. So the package visits a namespace only for as long as it takes to make
// a socket: on a locked OS thread of its own goroutine, with no call in between
// that could move to another thread (no resolver, no happy eyeballs: addresses
// are literals). Everything after that (accepting, reading, writing, even the
// wait for a connection to be established) runs on ordinary goroutines.
//
// What it promises:
//   - the caller's goroutine and its thread never change their namespace;
//   - a thread that could not go back to its own namespace is discarded, never
//     handed back to the scheduler;
//   - the process's first thread, which cannot be discarded and whose namespace
//     /proc/PID/ns/net shows to others, is never used for a visit;
//   - listeners are plain TCP: Go's default of MPTCP would make them useless
//     for a sockmap.
//
// A Handle holds a descriptor, so the namespace lives at least as long as the
// Handle, whatever happens to the path or process it was opened by. All
// functions are safe for concurrent use; closing a Handle while one of its
// functions runs makes that call fail and nothing else.
//
// Everything here needs CAP_SYS_ADMIN (setns); without it the calls fail with
// an error that wraps EPERM.
//
//	ns, err := netns.Open("/run/netns/pod-a")
//	if err != nil {
//		return err
//	}
//	defer ns.Close()
//	ln, err := netns.Listen(ctx, ns, "tcp", ":8080")
package netns
