// Package load is the work that a cluster does while a chaos run disturbs it:
// clients that write and read configuration keys, agents and clients that come,
// stay and go, intercepts, and watches. It records what every one of them was
// told and when; package check judges that.
//
// Clients choose among the servers at random and retry a write whose outcome
// they do not know at another server under the same request number, as
// trivet's own clients do. Load is safe for concurrent use; Stop ends it and
// waits for all of its goroutines.
package load
