package steal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// DialApp connects, inside the namespace, to the app that a connection to dst
// would have reached: to dst itself, and when nothing listens there, to the
// same port on the loopback address of the same family, so that an app which
// hides behind a sidecar on loopback is found too.
//
// The program never steals such a connection: it is the pod's own traffic,
// with the destination's address as its source. The app sees that address as
// its visitor's.
func DialApp(ctx context.Context, ns *netns.Handle, dst netip.AddrPort) (net.Conn, error) {
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	if !dst.IsValid() || dst.Port() == 0 || dst.Addr().IsUnspecified() {
		return nil, fmt.Errorf("dial app at %v: not an address to connect to", dst)
	}
	conn, err := dialSelf(ctx, ns, dst)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	loopback := loopback6
	if dst.Addr().Is4() {
		loopback = loopback4
	}
	if dst.Addr() == loopback || !isElsewhere(err) {
		return nil, err
	}
	conn, second := dialSelf(ctx, ns, netip.AddrPortFrom(loopback, dst.Port()))
	if second != nil {
		return nil, errors.Join(err, second)
	}
	return conn, nil
}

// isElsewhere tells whether the app, if it runs, listens on another address:
// nothing listens here, or the namespace does not have the address.
func isElsewhere(err error) bool {
	for _, e := range []error{
		unix.ECONNREFUSED, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialSelf connects to an address of the namespace from that same address.
func dialSelf(ctx context.Context, ns *netns.Handle, addr netip.AddrPort) (net.Conn, error) {
	source := netip.AddrPortFrom(addr.Addr(), 0)
	if source.Addr().Zone() != "" {
		// Binding would need the interface's index. IPv6 takes a destination
		// of its own as the source without being told.
		source = netip.AddrPort{}
	}
	conn, err := netns.Dial(ctx, ns, "tcp", addr.String(), func(_, _ string, c syscall.RawConn) error {
		if !source.IsValid() {
			return nil
		}
		return bindSource(c, source)
	})
	if err != nil {
		return nil, fmt.Errorf("dial app at %v: %w", addr, err)
	}
	return conn, nil
}

// bindSource fixes the source address, which IPv4 would choose otherwise for
// an interface's secondary address, and leaves the port to connect.
func bindSource(c syscall.RawConn, source netip.AddrPort) error {
	sa, err := netns.Sockaddr(source)
	if err != nil {
		return err
	}
	var bindErr error
	err = c.Control(func(fd uintptr) {
		// Without it bind would reserve a port for this socket alone, whatever
		// it connects to, and the namespace would run out of them.
		if bindErr = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); bindErr == nil {
			bindErr = unix.Bind(int(fd), sa)
		}
	})
	if err != nil {
		return err
	}
	if bindErr != nil {
		return fmt.Errorf("bind source %v: %w", source.Addr(), bindErr)
	}
	return nil
}
