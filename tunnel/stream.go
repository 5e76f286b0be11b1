package tunnel

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"trivet/proto/telepresence/manager"
)

// Stream is one end of a tunnel stream. The generated client and server
// streams of Manager.Tunnel, Agent.Tunnel and Peer.Relay satisfy it.
//
// One goroutine may call Send while another calls Recv. Recv returns io.EOF
// after the other end closed its sending side (server side), or ended the
// stream without an error (client side). A sent message belongs to the stream:
// this package does not touch it afterwards.
//
// Two more methods are used if a stream has them: those of HalfCloser, which
// mark the client side of gRPC, and those of Aborter. A stream without
// CloseSend that has Context() context.Context is watched: when that context
// ends, the opener is gone.
type Stream interface {
	Send(*manager.TunnelMessage) error
	Recv() (*manager.TunnelMessage, error)
}

// HalfCloser is the client side of a gRPC stream: it half closes without a
// frame. After CloseSend nothing may be sent.
type HalfCloser interface {
	CloseSend() error
}

// Aborter ends a stream at once: pending and later calls of Send and Recv
// return an error, and the other end sees one.
type Aborter interface {
	Abort()
}

// ClientStream is the client side of a gRPC stream with the means to abort it.
type ClientStream struct {
	grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage]
	cancel context.CancelFunc
}

// NewClientStream joins a stream and the cancel function of the context that
// the stream was made with. The caller still has to call cancel in the end, as
// gRPC demands; calling it early is Abort.
func NewClientStream(
	s grpc.BidiStreamingClient[manager.TunnelMessage, manager.TunnelMessage], cancel context.CancelFunc,
) *ClientStream {
	return &ClientStream{BidiStreamingClient: s, cancel: cancel}
}

// Abort cancels the stream's context.
func (c *ClientStream) Abort() { c.cancel() }

// Side says which end of a stream an endpoint holds.
type Side int

// The two sides.
const (
	// Opener sent StreamInfo. It half closes by gRPC's CloseSend, so its
	// stream must be a HalfCloser.
	Opener Side = iota + 1
	// Server answered StreamOK. It half closes by a closeSend frame.
	Server
)

// End says how a stream ended.
type End int

// The ends. All but EndClean cost the application a reset.
const (
	// EndClean: both directions were closed by their senders.
	EndClean End = iota + 1
	// EndDisconnected: a peer sent Disconnect.
	EndDisconnected
	// EndRejected: the dialling peer sent DialReject.
	EndRejected
	// EndLocal: reading or writing the local connection did not work.
	EndLocal
	// EndStream: a stream broke.
	EndStream
	// EndMalformed: a peer violated the contract.
	EndMalformed
	// EndIdle: nothing moved for the idle limit.
	EndIdle
	// EndCanceled: the context of the call ended.
	EndCanceled
)

var endNames = [...]string{
	EndClean: "clean", EndDisconnected: "disconnected", EndRejected: "rejected", EndLocal: "local",
	EndStream: "stream", EndMalformed: "malformed", EndIdle: "idle", EndCanceled: "canceled",
}

// String returns a word fit for a metric label.
func (e End) String() string {
	if e > 0 && int(e) < len(endNames) {
		return endNames[e]
	}
	return "unknown"
}

// Idle limits of the contract. Any message and any byte starts them anew.
const (
	IdleTCP = 2 * time.Hour
	IdleUDP = 60 * time.Second
)

// Options tune Serve and Relay. The zero value is a TCP connection.
type Options struct {
	// Datagram says that every Normal frame is one datagram and that the local
	// connection has no half close.
	Datagram bool
	// Idle ends a stream on which nothing moves; zero means IdleTCP or
	// IdleUDP, a negative value no limit.
	Idle time.Duration
	// Counters, if set, are kept up to date while bytes move. The owner may
	// share them among streams.
	Counters *Counters
}

func (o Options) idle() time.Duration {
	switch {
	case o.Idle != 0:
		return max(o.Idle, 0)
	case o.Datagram:
		return IdleUDP
	}
	return IdleTCP
}

// Counters count payload bytes of Normal frames, as seen from the stream (of
// Serve) or from the first stream (of Relay).
type Counters struct {
	// In counts bytes that came from the stream.
	In atomic.Uint64
	// Out counts bytes that were sent to it.
	Out atomic.Uint64
}

// Stats is what Serve moved and how it ended.
type Stats struct {
	// BytesIn came from the stream and were written to the local connection.
	BytesIn uint64
	// BytesOut were read from the local connection and sent to the stream.
	BytesOut uint64
	// Ignored counts frames that an endpoint has no use for: unknown codes and
	// handshake frames out of place.
	Ignored uint64
	// Dropped counts datagrams that the local connection refused as too large.
	Dropped uint64
	// End says how it ended.
	End End
}

// RelayStats is what Relay moved and how it ended.
type RelayStats struct {
	// AToB and BToA count the bytes of Normal frames that were sent on.
	AToB, BToA uint64
	// End says how it ended.
	End End
	// ErrA and ErrB are what the handlers of a and b should return: nil, or an
	// error that maps to a gRPC status.
	ErrA, ErrB error
}
