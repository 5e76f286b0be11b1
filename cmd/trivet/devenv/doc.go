// Package devenv runs a whole small cluster on this machine: servers, a node
// and a sample workload, each a process of its own, with certificates, in one
// directory that holds everything they make.
//
// As root the sample lives in a network namespace of its own behind a veth
// pair, because traffic of a host to itself is never stolen. Without root the
// node puts a plain listener in front of the sample.
//
// Everything that Start started ends with Close, or, if this process dies,
// with it.
package devenv
