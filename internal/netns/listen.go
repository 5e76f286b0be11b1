package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Backlog is how many established connections a listener's accept queue
// holds; the namespace's net.core.somaxconn may lower it. When it is full the
// kernel ignores further handshakes, which their clients repeat.
const Backlog = 1024

// Listen makes a TCP listener in the namespace. network is "tcp4", "tcp6"
// (IPv6 only) or "tcp"; address is a literal address with a port, or only a
// port (":8080", ":0"). "tcp" with only a port (or "[::]") gives one
// socket for both families and fails with EAFNOSUPPORT where the kernel has no
// IPv6.
//
// It does not go through net.ListenConfig: that decides by a probe, made once
// per process in whatever namespace came first, whether a socket for both
// families exists, and reads the backlog likewise.
func Listen(ctx context.Context, h *Handle, network, address string) (*net.TCPListener, error) {
	fail := func(err error) (*net.TCPListener, error) {
		return nil, fmt.Errorf("listen on %s %s in network namespace %v: %w", network, address, h, err)
	}
	if err := ctx.Err(); err != nil {
		return fail(err)
	}
	spec, err := parseListen(network, address)
	if err != nil {
		return fail(err)
	}
	fd := -1
	if err := h.Do(func() (err error) { fd, err = spec.socket(); return err }); err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return fail(err)
	}
	// FileListener works on a duplicate.
	f := os.NewFile(uintptr(fd), "listener "+address)
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return fail(err)
	}
	return ln.(*net.TCPListener), nil
}

// listenSpec is what Listen asks of the kernel.
type listenSpec struct {
	addr netip.AddrPort
	// both says that an IPv6 wildcard socket also takes IPv4.
	both bool
}

func parseListen(network, address string) (listenSpec, error) {
	if strings.HasPrefix(address, ":") {
		if network == "tcp4" {
			address = "0.0.0.0" + address
		} else {
			address = "[::]" + address
		}
	}
	addr, err := parseLiteral(network, address)
	return listenSpec{addr: addr, both: network == "tcp" && addr.Addr().IsUnspecified()}, err
}

// socket makes the socket in the calling thread's namespace.
func (s listenSpec) socket() (int, error) {
	family := unix.AF_INET6
	if s.addr.Addr().Is4() {
		family = unix.AF_INET
	}
	// IPPROTO_TCP by name: never MPTCP.
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, fmt.Errorf("socket: %w", err)
	}
	if err := s.prepare(fd, family); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (s listenSpec) prepare(fd, family int) error {
	if family == unix.AF_INET6 {
		only := 1
		if s.both {
			only = 0
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only); err != nil {
			return fmt.Errorf("set IPV6_V6ONLY: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fmt.Errorf("set SO_REUSEADDR: %w", err)
	}
	sa, err := Sockaddr(s.addr)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.Listen(fd, Backlog); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

// Sockaddr returns addr as the kernel takes it; a v4-mapped address becomes an
// IPv4 one. Zones are refused: they name interfaces of a namespace that the
// caller may not be in.
func Sockaddr(addr netip.AddrPort) (unix.Sockaddr, error) {
	ip := addr.Addr().Unmap()
	switch {
	case !ip.IsValid():
		return nil, errors.New("no address")
	case ip.Zone() != "":
		return nil, fmt.Errorf("address %v has a zone", ip)
	case ip.Is4():
		return &unix.SockaddrInet4{Addr: ip.As4(), Port: int(addr.Port())}, nil
	}
	return &unix.SockaddrInet6{Addr: ip.As16(), Port: int(addr.Port())}, nil
}

// parseLiteral reads a literal address of the network.
func parseLiteral(network, address string) (netip.AddrPort, error) {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address must be literal: %w", err)
	}
	addr = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	switch is4 := addr.Addr().Is4(); {
	case network == "tcp", network == "tcp4" && is4, network == "tcp6" && !is4:
		return addr, nil
	case network == "tcp4", network == "tcp6":
		return netip.AddrPort{}, fmt.Errorf("address %v is not of network %s", addr.Addr(), network)
	}
	return netip.AddrPort{}, net.UnknownNetworkError(network)
}
