package portmux

import (
	"net"
	"time"
)

// Defaults of Options.
const (
	// DefaultHandshakeTimeout is long enough for three round trips over a
	// satellite and short enough to make holding a slot expensive.
	DefaultHandshakeTimeout = 5 * time.Second
	// DefaultMaxHandshakes lets a fleet of thousands reconnect within seconds:
	// a handshake costs about a millisecond of CPU time.
	DefaultMaxHandshakes = 256
	// DefaultMaxConns is the number of connections that a server is sized for.
	DefaultMaxConns = 15_000
	// DefaultBacklog is the length of a listener's queue. Receivers start a
	// goroutine per connection, so a full queue means that one hangs.
	DefaultBacklog = 128
)

// Options tunes a Mux. In every field zero means the default.
type Options struct {
	// HandshakeTimeout is the time from accept to the end of the handshake (or
	// to the recognition of a raw protocol).
	HandshakeTimeout time.Duration
	// MaxHandshakes bounds the connections that are not routed yet. Each costs
	// a goroutine and some 20 KiB.
	MaxHandshakes int
	// MaxConns bounds the open connections, those handed over included.
	MaxConns int
	// Backlog bounds the connections that wait in one listener for Accept.
	Backlog int
	// OnReject, if set, is told of each connection that was turned away, after
	// it was counted. It may be called from several goroutines, must not block
	// and must not call Close. Peers can cause any number of calls: limit what
	// is logged.
	OnReject func(Rejection)
}

// Rejection tells of one connection that was turned away.
type Rejection struct {
	// Remote is the address of the peer.
	Remote net.Addr
	// Reason is what was counted.
	Reason Reason
	// Err says more where there is more to say; may be nil.
	Err error
}

func (o Options) withDefaults() Options {
	if o.HandshakeTimeout <= 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.MaxHandshakes <= 0 {
		o.MaxHandshakes = DefaultMaxHandshakes
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.Backlog <= 0 {
		o.Backlog = DefaultBacklog
	}
	return o
}
