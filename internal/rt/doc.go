// Package rt is the actor runtime: a typed face of protoactor-go, whose only
// importer it is (and only of its package actor).
//
// It owns the life of actors: mailboxes, incarnations, restarts with backoff,
// quarantine, escalation, worker goroutines and timers. It does not own
// addresses (a Ref is the only way to reach an actor; names are for logs and
// metrics), distance (no message leaves the process) or durable state (what an
// actor holds is gone after a restart).
//
// # Messages
//
// Every mailbox is bounded. Offer answers at once: nil, ErrFull or ErrStopped.
// Every message that was accepted is either handled, the one whose handling
// failed included, or given to Spec.Lost and counted. Results of workers and
// ticks of timers travel on a path of their own, which is as long as what the
// actor itself started; they arrive although the mailbox is full, in turn with
// the messages of others.
//
// # Failure
//
// An error or panic in Start or Handle, or a panic in a worker, is a failure
// of the actor. Its incarnation ends at once: its context and timers are
// cancelled, what its workers still return is dropped and counted. After the
// backoff, and after the last worker has returned, a fresh Behavior takes over
// the same mailbox and Ref. An actor that fails more often than its
// RestartPolicy allows is stopped for good (Quarantine) or makes its parent
// fail (Escalate). A Group watches over the share of its children that is
// quarantined; what no group contains reaches Options.OnEscalate.
//
// # Concurrency
//
// Start, Handle and Stop of one actor never run at the same time, and each
// sees what the call before it did. They must not wait: not for other actors,
// not for I/O. Waiting is the work of a worker (Ctx.Go). Ref, Group, System,
// Reply and Timer may be used from any goroutine. Of Ctx, the methods Self,
// Name, Logger and Context may be used anywhere, the others only within
// Start and Handle of that incarnation.
//
// An idle actor owns no goroutine. A worker that ignores its context holds up
// the restart or stop of its actor (and so of everything above it), but blocks
// no goroutine other than its own; Stop and Shutdown then end with their
// context's error.
//
// On a Stepper all of that runs in one goroutine, one step at a time, as its
// owner chooses; simulations use it.
//
// Time is otherwise the time package's and no goroutine polls, so all of it
// works inside a testing/synctest bubble, where synctest.Wait returns when every
// actor is at rest.
package rt
