// Package agentsvc holds the gRPC service telepresence.agent.Agent as
// published: what a traffic agent offers to clients that reach its pod without
// the manager's help.
//
// Method names and message types are the contract's. The service has no
// messages of its own, it uses those of package manager. Older agents lack the
// Lookup call and answer it by Unimplemented.
//
// The package is generated. A server embeds UnimplementedAgentServer by value.
// Clients and servers are safe for concurrent use as far as gRPC makes them so:
// one goroutine may send on a stream while another receives.
package agentsvc
