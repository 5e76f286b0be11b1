// Package agent puts a traffic agent beside a pod: no restart, no sidecar, one
// actor here that speaks the published contract for it.
//
// # What an agent does
//
// It arrives at the manager with a session of its own, keeps that session
// alive, and follows the intercepts of its workload. When a server goes away
// it turns to another one and resumes the session there. A waiting intercept
// that this pod can serve is armed, and only then approved; one that it cannot
// serve is refused with the reason; of several for the same port the one being
// served stays, else the first by id. What the manager last said holds while
// no server can be reached.
//
// Which intercept is served and what is answered to the others is decided by a
// pure function (decide); the actor carries it out.
//
// # What becomes of a stolen connection
//
// Tunnels owns every stolen connection of the process, whatever happens to the
// agent that it came by:
//
//   - it opens a tunnel to the owner of the intercept, and reads nothing from
//     the visitor before the owner's end says that it reached its target, so
//     an attempt that fails costs nothing and the next server is tried;
//   - five seconds after it was accepted it goes to the app (with replace: is
//     reset);
//   - a target that cannot be reached resets the visitor at once, and so does a
//     tunnel that breaks later: a truncated stream never ends cleanly;
//   - one that no intercept wants any more goes to the app.
//
// Connections that wait are bounded per pod, open ones per process; each way
// out is counted with its reason.
//
// # Concurrency
//
// An agent's state belongs to its actor. What connections need of it (where
// they go, and as whom) they read from a table that the actor replaces as a
// whole. The backend is closed when neither the actor nor a connection that
// has yet to be placed uses it.
//
// # Not here
//
// Tunnels that a client asks an agent to dial (WatchDial) are not served: the
// stream is held so that the manager sees where the agent is. Filters, copies
// and UDP are refused, each with its reason.
package agent
