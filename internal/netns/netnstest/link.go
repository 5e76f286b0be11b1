package netnstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// maxSubnets is how many links all test processes of a machine can have.
const maxSubnets = 256

// End is one end of a link.
type End struct {
	// Iface is the interface's name in its namespace.
	Iface string
	// V4 and V6 are its addresses.
	V4, V6 netip.Addr
}

// Connect joins two namespaces by a veth pair. a's end has the addresses
// ending in 1, b's those ending in 2.
func Connect(t testing.TB, a, b *Namespace) (End, End) {
	t.Helper()
	x := subnet(t)
	// Unique on the machine, so also where one end is in Host.
	name := func(side string) string { return fmt.Sprintf("tv%d%s", x, side) }
	ends := [2]End{}
	for i, side := range []string{"a", "b"} {
		ends[i] = End{
			Iface: name(side),
			V4:    netip.AddrFrom4([4]byte{10, 77, byte(x), byte(i + 1)}),
			V6:    netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x77, 3: byte(x), 15: byte(i + 1)}),
		}
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ends[0].Iface}, PeerName: ends[1].Iface}
	err := b.NS.WithFD(func(fd int) error {
		veth.PeerNamespace = netlink.NsFd(fd)
		return a.nl.LinkAdd(veth)
	})
	if err != nil {
		t.Fatalf("join %s and %s: %v", a.Name, b.Name, err)
	}
	// Deleting one end deletes both, at once; namespaces go some time later.
	t.Cleanup(func() {
		if err := a.nl.LinkDel(veth); err != nil {
			t.Errorf("remove link %s: %v", veth.Name, err)
		}
	})
	// Both ends up before the first address: an interface that gets its address
	// without a carrier learns of the carrier up to a second late.
	for i, ns := range []*Namespace{a, b} {
		ns.SetUp(t, ends[i].Iface, true)
	}
	for i, ns := range []*Namespace{a, b} {
		ns.AddAddress(t, ends[i].Iface, netip.PrefixFrom(ends[i].V4, 24))
		ns.AddAddress(t, ends[i].Iface, netip.PrefixFrom(ends[i].V6, 64))
	}
	return ends[0], ends[1]
}

// subnet reserves a subnet number until the test ends. The reservation is an
// abstract unix socket: exclusive among all processes here, and gone with a
// killed one.
func subnet(t testing.TB) int {
	t.Helper()
	for i := range maxSubnets {
		x := (os.Getpid() + i) % maxSubnets
		ln, err := net.Listen("unix", fmt.Sprintf("@trivet-netnstest-%d", x))
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatalf("reserve subnet: %v", err)
		}
		t.Cleanup(func() { ln.Close() })
		return x
	}
	t.Fatalf("all %d test subnets are in use", maxSubnets)
	return 0
}
