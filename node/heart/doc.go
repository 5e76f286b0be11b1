// Package heart writes the heartbeat of the traffic process, for as long as the
// process proves that it serves.
//
// The proof comes from where it matters, the loops that accept stolen
// connections: each says with every round that it has come round, and a loop
// that has not for too long withholds the beat. Then the steal programs leave
// new connections to the apps, and a second later the holder replaces the
// process. A process without a loop beats for itself: there is nothing it
// could fail to serve.
//
// A loop that waits where it cannot be woken up says so (Waiting): it is at
// rest, not stuck. Heart and Loop may be used from any goroutine; Run is the
// only one that beats.
package heart
