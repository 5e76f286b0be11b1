// Package tunnel is the published gRPC tunnel, byte for byte: its frames, its
// handshakes, the pump between a stream and a local connection (Serve) and the
// join of two streams (Relay). Servers relay with it, laptops and nodes hold
// the ends.
//
// It does not own who may open a tunnel, how two ends find each other, how a
// target is dialled, or the making of gRPC connections.
//
// # Promises
//
// Bytes arrive whole, in order and unchanged, or the application sees a reset:
// nothing that ends a connection early looks like its end. Half closes pass in
// both directions. Nothing is queued: per direction one message is under way
// besides what gRPC's own windows hold, so a slow reader slows its sender, and
// only that one. What an endpoint ignores or drops is counted in Stats.
//
// Nothing here trusts a peer: malformed input ends its own stream and costs the
// other side a Disconnect.
//
// # Concurrency
//
// Serve and Relay run two goroutines per call and own the streams, and Serve the
// connection, until they return. gRPC cannot interrupt a call of the server
// side of a stream other than by the return of its handler, so handlers return
// what Serve and Relay hand them at once; a goroutine that is parked until then
// touches nothing else. Frames and ids are plain values.
//
// # Cost
//
// With Codec on both ends of a gRPC connection payloads are never copied between
// the transport and the application; without it everything works the same, at a
// few copies per message.
//
// # Example
//
// An opener (a laptop that answers a DialRequest; a node would call WaitDialOK
// instead of dialling):
//
//	ctx, cancel := context.WithCancel(ctx)
//	defer cancel()
//	grpcStream, err := manager.Tunnel(ctx, grpc.ForceCodecV2(tunnel.Codec{}))
//	if err != nil {
//		return err
//	}
//	s := tunnel.NewClientStream(grpcStream, cancel)
//	if _, err := tunnel.Open(ctx, s, info, ""); err != nil {
//		return err
//	}
//	conn, err := dialer.DialContext(ctx, "tcp", target)
//	if err != nil {
//		return errors.Join(err, s.Send(tunnel.NewDialReject()), s.CloseSend())
//	}
//	if err := s.Send(tunnel.NewDialOK()); err != nil {
//		conn.Close()
//		return err
//	}
//	stats, err := tunnel.Serve(ctx, s, tunnel.Opener, conn, tunnel.Options{})
package tunnel
