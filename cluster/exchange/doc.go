// Package exchange brings the two ends of a tunnel together, also when they
// arrived on different servers.
//
// The end that arrives first waits here under the session that is expected to
// answer and the connection's id; the server that holds that session's dial
// stream is asked to pass a dial request on; the end that arrives second finds
// the first one, here or, through the other servers, there. From then on
// frames pass through tunnel.Relay, one in flight per direction.
//
// Nothing is stored: a tunnel lives as long as the two streams and the servers
// they pass through.
package exchange
