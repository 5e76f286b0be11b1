// Package system holds the system tests: the trivet binary as servers, node
// and command line, nginx from Debian in a network namespace, curl in another.
//
// They need root and a kernel with sk_lookup, nginx and curl, and skip with
// the reason where one of these is missing. They run one after the other,
// because several of them say how long something may take.
package system
