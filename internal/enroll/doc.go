// Package enroll is the holder's side of certificates: it turns a token into
// the first one and keeps it from running out.
//
// # What it promises
//
// A token is used over a connection whose server proved, by the root's hash in
// the token, that it is of the cluster that made the token: nothing is trusted
// on first use. The key that is asked for is on disk before the question, so
// that whoever repeats a question, after a crash or a lost answer, gets the
// certificate that the first one was granted.
//
// Keep renews when a third of a certificate's life is left. A machine that was
// asleep when its certificate ended asks with the ended one, for as long as
// [pki.RefreshWindow] lets it.
//
// # What it does not do
//
// It does not decide who gets a certificate; cluster/identity does, behind the
// rpcs of trivet.operator.v1.Enrollment.
//
// # Concurrency
//
// Everything here is safe for use by several goroutines, and by several
// processes with one bundle.
package enroll
