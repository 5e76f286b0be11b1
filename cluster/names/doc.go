// Package names answers clients' questions about names: through the older
// agents, which look up what their pods would, through the server's own
// resolver, and from the workloads that nodes have reported.
//
// A [Broker] hands questions to the agents that wait for them on this server
// and brings their answers back; a [Resolver] answers what no agent does. Both
// are safe for concurrent use.
package names
