package tunfwd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

const (
	tunPath = "/dev/net/tun"
	tunName = "tun0"
	// slack is room behind the MTU; reads of larger packets would be cut.
	slack = 64
	// deviceQueue is how many packets the kernel keeps while the reader is
	// busy; its default of 500 is one burst of a few connections.
	deviceQueue = 4096
)

// openTUN makes a device in the namespace, with an address and up, and
// loopback with it.
func openTUN(ns *netns.Handle, addr netip.Prefix, mtu int) (*os.File, error) {
	var fd int
	err := ns.Do(func() (err error) {
		// The device belongs to the namespace of the thread that opens this.
		fd, err = unix.Open(tunPath, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", tunPath, err)
		}
		if err = configure(fd, addr, mtu); err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// Only now: the poller takes a descriptor without a device for broken.
	return os.NewFile(uintptr(fd), tunPath), nil
}

// configure runs on a thread inside the namespace.
func configure(fd int, addr netip.Prefix, mtu int) error {
	req, err := unix.NewIfreq(tunName)
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("make a TUN device: %w", err)
	}
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	tun, err := nl.LinkByName(tunName)
	if err != nil {
		return fmt.Errorf("find the TUN device: %w", err)
	}
	ip := &netlink.Addr{IPNet: &net.IPNet{IP: addr.Addr().AsSlice(), Mask: net.CIDRMask(addr.Bits(), addr.Addr().BitLen())}}
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"set loopback up", func() error { return nl.LinkSetUp(lo) }},
		{"set the MTU", func() error { return nl.LinkSetMTU(tun, mtu) }},
		{"set the queue", func() error { return nl.LinkSetTxQLen(tun, deviceQueue) }},
		{"set the TUN device up", func() error { return nl.LinkSetUp(tun) }},
		{"add the address", func() error { return nl.AddrAdd(tun, ip) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}
