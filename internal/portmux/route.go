package portmux

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// A refused peer gets this much time, and may send this much, before its
// connection is closed: see linger.
const (
	lingerTime  = time.Second
	lingerBytes = 64 << 10
)

// watchHello returns a copy of conf that notes in the connection when the
// hello and the configuration have no application protocol in common.
// crypto/tls reports that as text only, and lets two cases pass: a hello
// without ALPN, and one with http/1.1 when h2 is served.
func watchHello(conf *tls.Config) *tls.Config {
	conf = conf.Clone()
	conf.MinVersion = max(conf.MinVersion, tls.VersionTLS13)
	choose := conf.GetConfigForClient
	conf.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		var chosen *tls.Config
		if choose != nil {
			var err error
			if chosen, err = choose(hello); err != nil {
				return nil, err
			}
		}
		offered := conf.NextProtos
		if chosen != nil {
			offered = chosen.NextProtos
		}
		if c, ok := hello.Conn.(*conn); ok {
			c.noALPN = !slices.ContainsFunc(hello.SupportedProtos, func(p string) bool {
				return slices.Contains(offered, p)
			})
		}
		return chosen, nil
	}
	return conf
}

// handle routes c. A raw handler runs in this goroutine.
func (m *Mux) handle(c *conn) {
	defer m.wg.Done()
	defer m.disown(c)
	handler := m.route(c)
	m.routed(c)
	if handler != nil {
		handler(c)
	}
}

// route recognises the protocol of c and hands c over, or closes it. For a raw
// protocol it returns the handler instead.
func (m *Mux) route(c *conn) func(net.Conn) {
	if err := c.SetDeadline(time.Now().Add(m.opts.HandshakeTimeout)); err != nil {
		m.reject(c, ReasonPeerClosed, err)
		return nil
	}
	v, err := m.peek(c)
	if err != nil {
		m.reject(c, ioReason(err, ReasonPeerClosed), err)
		return nil
	}
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	default:
		m.reject(c, ReasonHandshakeLimit, nil)
		return nil
	}
	switch {
	case v.tls:
		m.handshake(c)
	case v.raw == "":
		m.reject(c, v.reason, nil)
	default:
		return m.rawHandler(c, v.raw)
	}
	return nil
}

// peek reads until the protocol is known, never more than the longest prefix.
func (m *Mux) peek(c *conn) (verdict, error) {
	m.mu.Lock()
	prefixes := m.prefixes
	m.mu.Unlock()
	buf := make([]byte, len(prefixes[0]))
	n := 0
	for {
		k, err := c.Conn.Read(buf[n:])
		n += k
		if k > 0 {
			if v := sniff(buf[:n], prefixes); !v.more {
				c.prefix = buf[:n]
				return v, nil
			}
		}
		if err != nil {
			return verdict{}, err
		}
	}
}

func (m *Mux) rawHandler(c *conn, prefix string) func(net.Conn) {
	if err := c.SetDeadline(time.Time{}); err != nil {
		m.reject(c, ReasonPeerClosed, err)
		return nil
	}
	m.mu.Lock()
	h := m.handlers[prefix]
	if h != nil {
		m.rawCount[prefix]++
	}
	m.mu.Unlock()
	if h == nil {
		m.reject(c, ReasonNoHandler, nil)
	}
	return h
}

// handshake does the TLS handshake and hands the connection to its listener.
func (m *Mux) handshake(c *conn) {
	tc := tls.Server(c, m.conf)
	if err := tc.Handshake(); err != nil {
		m.refuse(c, handshakeReason(c, err), err)
		return
	}
	state := tc.ConnectionState()
	if state.Version < tls.VersionTLS13 { // a GetConfigForClient that allows more
		m.refuse(c, ReasonHandshake, nil)
		return
	}
	m.mu.Lock()
	l := m.listeners[state.NegotiatedProtocol]
	m.mu.Unlock()
	if l == nil || state.NegotiatedProtocol == "" {
		m.refuse(c, ReasonALPN, nil)
		return
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		m.reject(c, ReasonPeerClosed, err)
		return
	}
	if m.count.open.Load() > int64(m.opts.MaxConns) {
		m.farewell(c, tc, ReasonConnLimit, codes.Unavailable, "this server has as many connections as it takes; try another one")
		return
	}
	if !m.hold(c, state) {
		m.farewell(c, tc, ReasonIdentityLimit, codes.ResourceExhausted, "too many connections of this identity are open; close some")
		return
	}
	if reason, ok := m.deliver(c, l, tc); !ok {
		m.reject(c, reason, nil)
	}
}

// deliver gives c away in one step, so that at every moment either the Mux or
// the listener is there to close it, and Stats never shows less than what was
// accepted.
func (m *Mux) deliver(c *conn, l *listener, tc *tls.Conn) (Reason, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	reason, ok := l.deliver(tc)
	if ok {
		delete(m.owned, c)
		m.delivered[tc.ConnectionState().NegotiatedProtocol]++
	}
	return reason, ok
}

// refuse rejects a connection whose peer was, or is being, told why by a TLS
// alert. A peer that sent data meanwhile, as a client with its handshake done
// does, would get a reset instead of the alert if the connection were just
// closed; so the sending side is closed, and what comes in is thrown away for
// a moment.
func (m *Mux) refuse(c *conn, reason Reason, err error) {
	if reason == ReasonTimeout || reason == ReasonPeerClosed || c.CloseWrite() != nil {
		m.reject(c, reason, err)
		return
	}
	defer m.reject(c, reason, err)
	if c.SetReadDeadline(time.Now().Add(lingerTime)) == nil {
		// The only outcome of interest is that it ends.
		_, _ = io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
}

// handshakeReason sorts an error of the handshake.
func handshakeReason(c *conn, err error) Reason {
	var chain *tls.CertificateVerificationError
	var identity *errs.Error
	switch {
	case c.noALPN:
		return ReasonALPN
	case errors.As(err, &chain), errors.As(err, &identity):
		return ReasonCertificate
	}
	return ioReason(err, ReasonHandshake)
}

// ioReason sorts an error of reading or writing; other is for the rest.
func ioReason(err error, other Reason) Reason {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ReasonTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return ReasonPeerClosed
	}
	return other
}
