package steal

import (
	"io"
	"net"
	"net/netip"
	"sync"
)

// proxied is a connection that a Proxy stole.
type proxied struct {
	conn  *net.TCPConn
	route Route
	dst   netip.AddrPort
}

// original returns the address that a visitor of the route means who arrived
// at local.
func (r Route) original(local net.Addr) netip.AddrPort {
	addr := r.Original
	if !addr.IsValid() {
		addr = local.(*net.TCPAddr).AddrPort()
	}
	return netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
}

// proxyListener gives what a Proxy stole.
type proxyListener struct {
	addr  net.Addr
	queue chan proxied
	done  chan struct{}
	// pass gives a connection to the app.
	pass func(*net.TCPConn, Route)

	mu     sync.Mutex
	closed bool // guarded by mu
}

// offer queues a connection, unless the queue is full or closed.
func (l *proxyListener) offer(c proxied) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	select {
	case l.queue <- c:
		return true
	default:
		return false
	}
}

// Accept waits for a stolen connection.
func (l *proxyListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.queue:
		return &stolenConn{TCPConn: c.conn, local: net.TCPAddrFromAddrPort(c.dst)}, nil
	case <-l.done:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.addr, Err: net.ErrClosed}
	}
}

// Addr returns the address of the first route's listener.
func (l *proxyListener) Addr() net.Addr { return l.addr }

// Close ends the stealing: what waits for Accept goes to the app, and so does
// every connection after it.
func (l *proxyListener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	close(l.done)
	for {
		select {
		case c := <-l.queue:
			l.pass(c.conn, c.route)
		default:
			return nil
		}
	}
}

// stolenConn is a connection that shows its original destination. The rest is
// the TCP connection's, half close and splicing included.
type stolenConn struct {
	*net.TCPConn
	local net.Addr
}

// LocalAddr returns the original destination.
func (c *stolenConn) LocalAddr() net.Addr { return c.local }

// splice copies both ways until both ends have said that they are done, and
// closes both. One end's half close is passed on; its reset resets the other,
// and so does the death of this process.
func splice(a, b *net.TCPConn) {
	setLinger(a, b, lingerReset)
	var wg sync.WaitGroup
	wg.Go(func() { pump(b, a) })
	pump(a, b)
	wg.Wait()
	setLinger(a, b, lingerNone)
	a.Close()
	b.Close()
}

// What the kernel does when a connection is closed, by us or because this
// process has died.
const (
	lingerReset = 0  // resets it
	lingerNone  = -1 // sends what is left and ends it in order
)

// setLinger is for closes that are still to come. It fails, which does not
// matter, for a connection that is closed already.
func setLinger(a, b *net.TCPConn, sec int) {
	_ = a.SetLinger(sec)
	_ = b.SetLinger(sec)
}

// pump copies one way.
func pump(dst, src *net.TCPConn) {
	if _, err := io.Copy(dst, src); err != nil {
		reset(src)
		reset(dst)
		return
	}
	// An error means that the other direction has reset dst.
	_ = dst.CloseWrite()
}

// reset closes a connection so that its peer sees a reset: the bytes it may
// still wait for will not come.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(lingerReset)
	c.Close()
}
