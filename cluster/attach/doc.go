// Package attach knows which peers' streams are open where.
//
// Registry holds the streams of this server; View holds what every server
// said about its own. Both are soft state: nothing is written to the log, and
// after a restart the streams themselves rebuild it. A server that cannot be
// reached has no attachments, which is why its loss must never be taken for
// the departure of the peers that were attached to it.
//
// All methods may be called from any goroutine; none blocks.
package attach
