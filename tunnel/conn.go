package tunnel

import (
	"net"
	"sync"

	"google.golang.org/grpc/mem"
)

// Sizes of the buffers that an endpoint reads its local connection into. A
// stream that is idle or chatty holds a small one. Larger messages gain nothing:
// the cost of a byte is flat from 64 KiB on.
const (
	smallRead = 4 << 10
	largeRead = 64 << 10
)

// bufferPool hands out buffers of one size, with room for a frame's code in
// front.
type bufferPool struct {
	size int
	pool sync.Pool
}

var _ mem.BufferPool = (*bufferPool)(nil)

var (
	smallBuffers = &bufferPool{size: 1 + smallRead}
	largeBuffers = &bufferPool{size: 1 + largeRead}
)

// Get returns a buffer of the pool's size, which is all that its users ask for.
func (p *bufferPool) Get(int) *[]byte {
	if b, ok := p.pool.Get().(*[]byte); ok {
		*b = (*b)[:p.size]
		return b
	}
	b := make([]byte, p.size)
	return &b
}

// Put takes a buffer back.
func (p *bufferPool) Put(b *[]byte) { p.pool.Put(b) }

// closeWriter is a connection that can half close.
type closeWriter interface{ CloseWrite() error }

// reset closes c so that its peer cannot take what it has received for all
// there is: with a reset where the connection knows one, and below TLS, whose
// own close would say that the data is complete.
func reset(c net.Conn) {
	setLinger(c, lingerReset)
	inner := innermost(c)
	// Errors are of no interest: the connection is gone either way.
	_ = inner.Close()
	if inner != c {
		_ = c.Close()
	}
}

// What the kernel does when the connection is closed, by us or because this
// process has died.
const (
	lingerReset = 0  // resets it
	lingerNone  = -1 // sends what is left and ends it in order
)

// setLinger is for closes that are still to come, where the connection knows
// the difference.
func setLinger(c net.Conn, sec int) {
	if l, ok := innermost(c).(interface{ SetLinger(sec int) error }); ok {
		// It fails for a connection that is closed already.
		_ = l.SetLinger(sec)
	}
}

// innermost is the connection below TLS.
func innermost(c net.Conn) net.Conn {
	for {
		w, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = w.NetConn()
	}
}
