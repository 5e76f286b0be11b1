// Package managertest is a manager for tests of the node: several servers with
// one state, in this process, that speak what a node uses of the published
// contract and of trivet.node.v1.
//
// A test says what the manager wants (Order, SetIntercepts), what becomes of
// tunnels (OnTunnel), and when a server dies or hangs (Server.Kill,
// Server.Hang); it waits for what the node did (Await) and never for time.
package managertest
