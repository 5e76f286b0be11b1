package portmux

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// conn is an accepted connection. It gives back the bytes that were read to
// recognise the protocol, and is counted as open until Close.
type conn struct {
	net.Conn
	open   *atomic.Int64
	closed sync.Once
	// onClose, if set, runs at the first Close; set before the connection is
	// handed over.
	onClose func()
	prefix  []byte // read but not yet given back; used by the reader alone

	// noALPN is set during the handshake when the hello names no protocol that
	// is served.
	noALPN bool
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.prefix) > 0 {
		n := copy(p, c.prefix)
		c.prefix = c.prefix[n:]
		return n, nil
	}
	return c.Conn.Read(p)
}

// Close implements net.Conn.
func (c *conn) Close() error {
	// First, so that whoever sees the connection end sees the count too.
	c.closed.Do(func() {
		c.open.Add(-1)
		if c.onClose != nil {
			c.onClose()
		}
	})
	return c.Conn.Close()
}

// CloseWrite ends the sending direction.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// NetConn returns the connection underneath, for splicing. Bytes that are
// still to be given back are not in it, and only Close of the outer connection
// ends the accounting.
func (c *conn) NetConn() net.Conn { return c.Conn }
