package portmux

import (
	"crypto/tls"
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
	// DefaultMaxPending bounds the connections whose first byte has not come.
	// Such a one costs a goroutine and nothing else.
	DefaultMaxPending = 2048
	// DefaultMaxPerAddress keeps one address from holding all handshakes. Many
	// peers may share an address behind a translator, but a handshake takes
	// milliseconds, and who was turned away comes again.
	DefaultMaxPerAddress = 64
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
	// MaxHandshakes bounds the connections that have sent something and are not
	// routed yet. Each costs a goroutine and some 20 KiB.
	MaxHandshakes int
	// MaxPending bounds the connections that are not routed yet, those that have
	// sent nothing included.
	MaxPending int
	// MaxPerAddress bounds the connections of one remote address that are not
	// routed yet.
	MaxPerAddress int
	// Identify, if set, names who is at the other end after the handshake, and
	// how many open connections with that name there may be; 0: any number. One
	// without a name is neither bounded nor found by End.
	Identify func(tls.ConnectionState) (name string, limit int)
	// MaxConns bounds the connections that are handed over and not closed. What
	// comes beyond it is refused after the handshake, with a reason where the
	// protocol has room for one.
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
	if o.MaxPending <= 0 {
		o.MaxPending = max(DefaultMaxPending, o.MaxHandshakes)
	}
	if o.MaxPerAddress <= 0 {
		o.MaxPerAddress = DefaultMaxPerAddress
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.Backlog <= 0 {
		o.Backlog = DefaultBacklog
	}
	return o
}
