// Package managersvc holds the gRPC service telepresence.manager.Manager as
// published: the calls of current peers and, after them, those that only older
// peers make.
//
// Method names and message types are the contract's. The messages are in
// package manager; the two are apart so that the messages can be used without
// gRPC. Although the Go packages differ, both belong to the proto package
// telepresence.manager, which is what method names on the wire are made of.
//
// The package is generated. A server embeds UnimplementedManagerServer by
// value, so that a call it does not offer is answered by Unimplemented, on
// which peers step down to an older form. Clients and servers are safe for
// concurrent use as far as gRPC makes them so: one goroutine may send on a
// stream while another receives.
package managersvc
