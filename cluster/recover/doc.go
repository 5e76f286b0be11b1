// Package recover works on the data directory of a server that does not run:
// it gives it another configuration when a cluster has lost its majority for
// good, and shows its state at a point in the past.
//
// It refuses a directory that a process has open and one without state. Recover
// copies the directory before it changes anything; State works on a copy of its
// own and changes nothing.
package recover
