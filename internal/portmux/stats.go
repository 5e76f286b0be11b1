package portmux

import (
	"maps"
	"sync/atomic"
)

// Reason says why a connection was turned away. Reasons are stable: they are
// label values of metrics.
type Reason string

// The reasons.
const (
	// ReasonConnLimit: MaxConns connections were open.
	ReasonConnLimit Reason = "conn_limit"
	// ReasonHandshakeLimit: MaxHandshakes or MaxPending connections were being
	// routed.
	ReasonHandshakeLimit Reason = "handshake_limit"
	// ReasonAddressLimit: MaxPerAddress connections of the peer's address were
	// being routed.
	ReasonAddressLimit Reason = "address_limit"
	// ReasonIdentityLimit: the identity had as many open connections as it may.
	ReasonIdentityLimit Reason = "identity_limit"
	// ReasonTimeout: the peer was silent or too slow.
	ReasonTimeout Reason = "timeout"
	// ReasonPeerClosed: the peer left before it could be routed, as health
	// checks of load balancers do.
	ReasonPeerClosed Reason = "peer_closed"
	// ReasonHTTP: the peer spoke plain HTTP.
	ReasonHTTP Reason = "http"
	// ReasonUnknown: the first bytes are those of no known protocol.
	ReasonUnknown Reason = "unknown_protocol"
	// ReasonNoHandler: a raw protocol that nobody serves here.
	ReasonNoHandler Reason = "no_handler"
	// ReasonALPN: the peer asked for no application protocol that is served
	// here.
	ReasonALPN Reason = "alpn"
	// ReasonCertificate: the peer's certificate was refused.
	ReasonCertificate Reason = "certificate"
	// ReasonHandshake: the TLS handshake did not work for another reason, such
	// as an old version or no certificate.
	ReasonHandshake Reason = "handshake"
	// ReasonBacklog: the listener's queue was full.
	ReasonBacklog Reason = "backlog"
	// ReasonShutdown: the Mux was closed meanwhile.
	ReasonShutdown Reason = "shutdown"
)

// Reasons returns all reasons, in a new slice.
func Reasons() []Reason {
	return []Reason{
		ReasonConnLimit, ReasonHandshakeLimit, ReasonAddressLimit, ReasonIdentityLimit, ReasonTimeout, ReasonPeerClosed, ReasonHTTP, ReasonUnknown,
		ReasonNoHandler, ReasonALPN, ReasonCertificate, ReasonHandshake, ReasonBacklog, ReasonShutdown,
	}
}

// Stats is a snapshot of a Mux's counters. At rest, Accepted equals the sum of
// Delivered, Raw and Rejected.
type Stats struct {
	// Accepted counts the connections taken from the port.
	Accepted uint64
	// AcceptErrors counts errors of accept that the loop outlived.
	AcceptErrors uint64
	// Open is the number of connections open now, those handed over included.
	Open int
	// Pending is the number of connections that are not routed yet, Handshaking
	// that of those among them that have sent something.
	Pending, Handshaking int
	// Delivered counts the connections put into a listener's queue, by ALPN
	// name.
	Delivered map[string]uint64
	// Queued is the number of connections waiting for Accept now, by ALPN
	// name.
	Queued map[string]int
	// Raw counts the connections given to a raw handler, by prefix.
	Raw map[string]uint64
	// Rejected counts the connections turned away; it has every reason as key.
	Rejected map[Reason]uint64
}

type counters struct {
	accepted     atomic.Uint64
	acceptErrors atomic.Uint64
	open         atomic.Int64
	rejected     map[Reason]*atomic.Uint64 // keys never change
}

func newCounters() *counters {
	c := &counters{rejected: make(map[Reason]*atomic.Uint64)}
	for _, r := range Reasons() {
		c.rejected[r] = new(atomic.Uint64)
	}
	return c
}

// Stats returns the counters.
func (m *Mux) Stats() Stats {
	s := Stats{
		Accepted:     m.count.accepted.Load(),
		AcceptErrors: m.count.acceptErrors.Load(),
		Open:         int(m.count.open.Load()),
		Handshaking:  len(m.slots),
		Queued:       make(map[string]int),
		Rejected:     make(map[Reason]uint64),
	}
	for r, n := range m.count.rejected {
		s.Rejected[r] = n.Load()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Pending = m.pending
	s.Delivered = maps.Clone(m.delivered)
	s.Raw = maps.Clone(m.rawCount)
	for name, l := range m.listeners {
		s.Queued[name] = len(l.queue)
	}
	return s
}
