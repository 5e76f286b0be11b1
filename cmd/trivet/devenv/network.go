package devenv

import (
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// The sample's network: a /30 and a /126 out of ranges that stay on this
// machine.
const (
	linkTries = 64
	v4Bits    = 30
	v6Bits    = 126
)

// network is the namespace of the sample and the veth pair to it.
type network struct {
	// name is the namespace's for `ip netns`; path can be opened.
	name, path string
	// pod4 and pod6 are the sample's addresses.
	pod4, pod6 netip.Addr
	link       string
}

// newNetwork makes a namespace with a veth pair; dir makes the names stable
// and different from those of other environments.
func newNetwork(dir string) (*network, error) {
	h := fnv.New32a()
	h.Write([]byte(dir))
	seed := h.Sum32()
	ns, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("make the sample's network namespace: %w", err)
	}
	defer ns.Close()
	var lastErr error
	for i := range uint32(linkTries) {
		n := numbered(seed + i)
		if _, err := netlink.LinkByName(n.link); err == nil {
			lastErr = fmt.Errorf("interface %s exists already", n.link)
			continue
		}
		path, err := ns.Bind(n.name)
		if err != nil {
			lastErr = err
			continue
		}
		n.path = path
		if err := n.connect(ns); err != nil {
			return nil, errors.Join(err, n.Close())
		}
		return n, nil
	}
	return nil, fmt.Errorf("make the sample's network: %w", lastErr)
}

func numbered(seed uint32) *network {
	a, b := byte(seed>>6), byte(seed<<2)
	return &network{
		name: fmt.Sprintf("trivet-dev-%04x", seed&0x3fff), link: fmt.Sprintf("trv%04x", seed&0x3fff),
		pod4: netip.AddrFrom4([4]byte{10, 88, a, b&0xfc | 2}),
		pod6: netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x88, 2: a, 3: b & 0xfc, 15: 2}),
	}
}

func (n *network) connect(ns *netns.Handle) error {
	peer := "eth0"
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: n.link}, PeerName: peer}
	if err := ns.WithFD(func(fd int) error {
		veth.PeerNamespace = netlink.NsFd(fd)
		return netlink.LinkAdd(veth)
	}); err != nil {
		return fmt.Errorf("make the veth pair %s: %w", n.link, err)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	var pod *netlink.Handle
	if err := ns.Do(func() (err error) {
		pod, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return err
	}
	defer pod.Close()
	// Both ends up before the first address: an interface that gets its address
	// without a carrier learns of the carrier late.
	if err := errors.Join(up(pod, "lo"), up(host, n.link), up(pod, peer)); err != nil {
		return err
	}
	return errors.Join(
		address(host, n.link, n.pod4.Prev(), v4Bits), address(pod, peer, n.pod4, v4Bits),
		address(host, n.link, n.pod6.Prev(), v6Bits), address(pod, peer, n.pod6, v6Bits),
	)
}

func up(h *netlink.Handle, name string) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	if err := h.LinkSetUp(l); err != nil {
		return fmt.Errorf("set interface %s up: %w", name, err)
	}
	return nil
}

func address(h *netlink.Handle, name string, ip netip.Addr, bits int) error {
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", name, err)
	}
	a := &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(bits, ip.BitLen())}}
	if ip.Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := h.AddrAdd(l, a); err != nil {
		// A machine without IPv6 still has a working sample.
		if ip.Is6() && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
			return nil
		}
		return fmt.Errorf("give %s the address %s: %w", name, ip, err)
	}
	return nil
}

// Close removes the pair and the namespace's name.
func (n *network) Close() error {
	var errLink error
	if l, err := netlink.LinkByName(n.link); err == nil {
		errLink = netlink.LinkDel(l)
	}
	return errors.Join(errLink, netns.Unbind(n.name))
}
