// Package holder is the small process of a node that must not fail: it owns
// what has to outlive the traffic process, and replaces that process when it
// ends or hangs.
//
// It owns the listeners, programs and links in the pods' network namespaces
// (steal.Attachment), the listeners in front of pods where there is no
// stealing, and the map of the heartbeat. It does not accept, does not arm and
// speaks to no server.
//
// # What it promises
//
//   - A connection in the accept queue of a pod's listener survives the end of
//     the traffic process: the next one gets the same listener.
//   - A traffic process whose heartbeat is a second old is killed and replaced.
//     Until its successor beats, new connections go to the apps.
//   - One that fails again and again is started with growing delay.
//   - When Run returns, nothing is armed, attached or listening any more, and
//     the traffic process has ended.
//   - When the holder itself dies, the kernel detaches its programs; the
//     traffic process sees the end of its socket (and a SIGTERM) and ends too.
//
// # Concurrency
//
// Run is the loop; it keeps its OS thread, because the kernel ties the death
// signal of a child to the thread that started it. All other methods may be
// called from any goroutine at any time.
package holder
