// Package clienttest is a manager for tests of what talks to one: several
// servers over real TLS on loopback, with a state that they share as the
// servers of a real one do. Each server can be killed, hung, drained and
// started again; calls are recorded and their answers can be planned.
//
// It implements what a client session and the command line need, no more, and
// none of the rules of the real manager. It is for tests only.
//
// A Manager is safe for concurrent use. Everything that it started ends with
// the test.
package clienttest
