// Package portmux shares one TCP port between protocols and hands each its own
// net.Listener.
//
// # Routing
//
// The first byte of a TLS record starts a TLS 1.3 handshake; the connection
// then goes to the listener of the protocol that ALPN chose ("h2" for gRPC,
// "trivet-raft/1", ...). The first bytes of a raw protocol ([RelayPreamble])
// go to its handler. Everything else (plain HTTP, port scans, silence) is
// closed and counted by [Reason].
//
// Who may connect is decided by the tls.Config that the Mux was given; this
// package never looks at identities.
//
// # Bounds
//
// The accept loop does no I/O on connections. Every connection has one
// deadline for all it takes to be routed, the number of those being routed is
// bounded, so is the number of open connections, and so is the queue of each
// listener. What is over a bound is closed at once and counted; nothing waits.
// The accept loop outlives the lack of descriptors or memory.
//
// # Ownership and concurrency
//
// A connection belongs to the Mux until Accept returns it or its raw handler
// returns; from then on it is the receiver's to close, and it counts as open
// until that happens. Close ends what the Mux still owns and waits for all its
// goroutines. All methods may be called from several goroutines; Close must
// not be called from a raw handler or from OnReject, because it waits for
// them.
//
//	mux := portmux.New(ln, pki.ServerConfig(src, policy), portmux.Options{})
//	grpcServer := grpc.NewServer(grpc.Creds(portmux.Credentials()))
//	go grpcServer.Serve(mux.ALPN("h2"))
//	raftLayer := newStreamLayer(mux.ALPN("trivet-raft/1"))
//	err := mux.Serve(ctx)
package portmux
