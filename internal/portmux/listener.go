package portmux

import (
	"crypto/tls"
	"net"
	"sync"
)

// listener hands out the connections of one ALPN name.
type listener struct {
	addr  net.Addr
	queue chan *tls.Conn
	done  chan struct{}

	mu     sync.Mutex // orders deliver and Close
	closed bool       // guarded by mu
}

func newListener(addr net.Addr, backlog int) *listener {
	return &listener{addr: addr, queue: make(chan *tls.Conn, backlog), done: make(chan struct{})}
}

// deliver puts c into the queue. It returns a reason when it did not, and c is
// the caller's still.
func (l *listener) deliver(c *tls.Conn) (Reason, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ReasonALPN, false
	}
	select {
	case l.queue <- c:
		return "", true
	default:
		return ReasonBacklog, false
	}
}

// Accept implements net.Listener. The connection is a *tls.Conn whose
// handshake is done.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, l.closedError()
	default:
	}
	select {
	case c := <-l.queue:
		return c, nil
	case <-l.done:
		return nil, l.closedError()
	}
}

func (l *listener) closedError() error {
	return &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
}

// Close implements net.Listener. It closes the connections in the queue too.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	close(l.done)
	for {
		select {
		case c := <-l.queue:
			// Not through TLS: its close notification could block.
			_ = c.NetConn().Close()
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}
