package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// dialAttempts bounds how often a dial starts over because the kernel
// connected the socket to itself or picked a source address in use.
const dialAttempts = 3

// errAgain ends an attempt that wanted a second socket after the thread had
// left the namespace.
var errAgain = fmt.Errorf("no free source port: %w", syscall.EADDRNOTAVAIL)

// Control is called between the making of a socket and its connect, as
// net.Dialer.Control is; it may bind. It runs in the process's own namespace:
// only c belongs to the other one.
type Control func(network, address string, c syscall.RawConn) error

// Dial connects from the namespace to a literal address ("tcp", "tcp4" or
// "tcp6"). control may be nil. Only the making of the socket occupies a
// thread; a connect that waits does not.
func Dial(ctx context.Context, h *Handle, network, address string, control Control) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, fmt.Errorf("dial in network namespace %v: %w", h, err)
	}
	addr, err := parseLiteral(network, address)
	if err != nil {
		return fail(err)
	}
	network = "tcp6"
	if addr.Addr().Is4() {
		network = "tcp4"
	}
	for range dialAttempts {
		var conn net.Conn
		err = onThread(func() (err error) {
			conn, err = h.dial(ctx, network, addr.String(), control)
			return err
		})
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, errAgain) {
			break
		}
	}
	return fail(err)
}

// dial makes one attempt on the calling goroutine, whose thread is locked. The
// dialer makes the socket and calls its control function on this goroutine;
// there the thread goes home and is unlocked, and the connect may wait on any.
func (h *Handle) dial(ctx context.Context, network, address string, control Control) (net.Conn, error) {
	leave, err := h.enter()
	if err != nil {
		return nil, err
	}
	left := false
	d := net.Dialer{ControlContext: func(_ context.Context, network, address string, c syscall.RawConn) error {
		if left {
			// A second socket, by the dialer's own retry, would be one of the
			// wrong namespace.
			return errAgain
		}
		left = true
		if err := leave(); err != nil {
			return err
		}
		if control != nil {
			return control(network, address, c)
		}
		return nil
	}}
	d.SetMultipathTCP(false)
	conn, err := d.DialContext(ctx, network, address)
	if left {
		return conn, err
	}
	// The dialer gave up before it made a socket.
	if back := leave(); back != nil {
		if conn != nil {
			conn.Close()
		}
		return nil, errors.Join(err, back)
	}
	return conn, err
}
