package tunnel

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"

	"google.golang.org/grpc/mem"
)

// partsHint is how many parts a message of largeRead bytes has in the usual
// case, an HTTP/2 frame of 16 KiB each, with room for odd ones.
const partsHint = 8

var errAfterCloseSend = errors.New("data after closeSend")

// connToStream reads the local connection and sends Normal frames. Nothing is
// queued: the next read starts when the stream has taken the last one.
func (e *endpoint) connToStream() outcome {
	pool := smallBuffers
	if e.opts.Datagram {
		pool = largeBuffers // a short read would cut the datagram
	}
	var m message
	for {
		b := pool.Get(0)
		n, err := e.conn.Read((*b)[1:])
		if n > 0 || e.opts.Datagram && err == nil {
			e.idle.touch()
			full := n == pool.size-1
			(*b)[0] = byte(CodeNormal)
			*b = (*b)[:1+n]
			m.setNormal(mem.NewBuffer(b, pool))
			if serr := e.port.send(&m); serr != nil {
				return outcome{EndStream, serr}
			}
			e.bytesOut.Add(uint64(n))
			if c := e.opts.Counters; c != nil {
				c.Out.Add(uint64(n))
			}
			if !e.opts.Datagram {
				pool = nextPool(pool, n, full)
			}
		} else {
			pool.Put(b)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF), e.over.Load() && errors.Is(err, os.ErrDeadlineExceeded):
			if err := e.port.closeSend(); err != nil {
				return outcome{EndStream, err}
			}
			return clean
		default:
			return outcome{EndLocal, err}
		}
	}
}

// nextPool chooses the size of the next read after one of n bytes.
func nextPool(p *bufferPool, n int, full bool) *bufferPool {
	switch {
	case full:
		return largeBuffers
	case n <= smallRead:
		return smallBuffers
	}
	return p
}

// streamToConn receives frames and writes what Normal ones carry.
func (e *endpoint) streamToConn() outcome {
	var (
		m      message
		closed bool
		parts  [partsHint][]byte
	)
	defer m.release()
	for {
		m.release()
		err := e.port.recv(&m)
		switch {
		case errors.Is(err, io.EOF) && closed:
			return clean
		case errors.Is(err, io.EOF):
			return e.closeWrite()
		case err != nil:
			return outcome{EndStream, err}
		}
		e.idle.touch()
		if m.payloadLen() == 0 {
			return outcome{EndMalformed, ErrEmptyPayload}
		}
		switch m.code() {
		case CodeNormal:
			if closed {
				return outcome{EndMalformed, errAfterCloseSend}
			}
			if err := e.write(m.appendBody(parts[:0])); err != nil {
				return outcome{EndLocal, err}
			}
		case CodeCloseSend:
			// An opener reads on: the server's end of the stream follows.
			if o := e.closeWrite(); o.end != EndClean || e.side == Server {
				return o
			}
			closed = true
		case CodeDisconnect:
			return outcome{end: EndDisconnected}
		case CodeDialReject:
			return outcome{end: EndRejected}
		case CodeKeepAlive, CodeDialOK:
		default:
			e.ignored.Add(1)
		}
	}
}

// write writes one body to the local connection.
func (e *endpoint) write(parts [][]byte) error {
	var (
		n   int64
		err error
	)
	switch {
	case e.opts.Datagram:
		var k int
		k, err = e.conn.Write(joined(parts))
		n = int64(k)
		if errors.Is(err, syscall.EMSGSIZE) {
			// One datagram is lost, as any may be; the flow goes on.
			e.dropped.Add(1)
			return nil
		}
	case len(parts) == 0:
	case len(parts) == 1:
		var k int
		k, err = e.conn.Write(parts[0])
		n = int64(k)
	default:
		bufs := net.Buffers(parts)
		n, err = bufs.WriteTo(e.conn)
	}
	e.bytesIn.Add(uint64(n))
	if c := e.opts.Counters; c != nil {
		c.In.Add(uint64(n))
	}
	e.idle.touch()
	return err
}

// joined returns the parts as one slice.
func joined(parts [][]byte) []byte {
	if len(parts) == 1 {
		return parts[0]
	}
	var b []byte
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

// closeWrite passes the peer's end on to the application.
func (e *endpoint) closeWrite() outcome {
	c, ok := e.conn.(closeWriter)
	if !ok || e.opts.Datagram {
		return clean
	}
	if err := c.CloseWrite(); err != nil {
		return outcome{EndLocal, err}
	}
	return clean
}
