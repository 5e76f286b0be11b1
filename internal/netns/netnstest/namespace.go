package netnstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

const namePrefix = "trivet-"

var (
	// made numbers the namespaces of this process.
	made     atomic.Uint64
	reapOnce sync.Once
)

// Namespace is a network namespace of a test.
type Namespace struct {
	// Name is what iproute2 calls it; empty for the machine's own.
	Name string
	// Path can be given to netns.Open, also by another process.
	Path string
	// NS is open until the test ends.
	NS *netns.Handle

	nl *netlink.Handle
}

// Require skips the test when this process cannot make network namespaces, and
// says why.
func Require(t testing.TB) {
	t.Helper()
	h, err := netns.New()
	switch {
	case err == nil:
		h.Close()
	case errors.Is(err, unix.EPERM):
		t.Skipf("network namespaces need root (CAP_SYS_ADMIN): %v", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		t.Skipf("the kernel has no network namespaces: %v", err)
	default:
		t.Fatalf("probe for network namespaces: %v", err)
	}
}

// New makes a namespace with loopback up and a name; both go away with the
// test.
func New(t testing.TB) *Namespace {
	t.Helper()
	reapOnce.Do(reap)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	ns := &Namespace{Name: fmt.Sprintf("%s%d-%d", namePrefix, os.Getpid(), made.Add(1)), NS: h}
	t.Cleanup(func() { ns.NS.Close() })
	if ns.Path, err = h.Bind(ns.Name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Unbind(ns.Name); err != nil {
			t.Error(err)
		}
	})
	ns.open(t)
	ns.SetUp(t, "lo", true)
	return ns
}

// Host returns the namespace that the test process itself is in. Only the
// links made to it are removed with the test.
func Host(t testing.TB) *Namespace {
	t.Helper()
	h, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	ns := &Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", os.Getpid()), NS: h}
	ns.open(t)
	return ns
}

// SetUp sets an interface up or down; down is how a test cuts a cable.
func (ns *Namespace) SetUp(t testing.TB, iface string, up bool) {
	t.Helper()
	link, err := ns.nl.LinkByName(iface)
	if err != nil {
		t.Fatalf("find interface %s in %s: %v", iface, ns.Name, err)
	}
	set := ns.nl.LinkSetDown
	if up {
		set = ns.nl.LinkSetUp
	}
	if err := set(link); err != nil {
		t.Fatalf("set interface %s in %s up=%v: %v", iface, ns.Name, up, err)
	}
}

// AddAddress gives an interface an address, usable at once (no duplicate
// address detection).
func (ns *Namespace) AddAddress(t testing.TB, iface string, prefix netip.Prefix) {
	t.Helper()
	link, err := ns.nl.LinkByName(iface)
	if err != nil {
		t.Fatalf("find interface %s in %s: %v", iface, ns.Name, err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{
		IP:   prefix.Addr().AsSlice(),
		Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen()),
	}}
	if prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	if err := ns.nl.AddrAdd(link, addr); err != nil {
		t.Fatalf("add %v to %s in %s: %v", prefix, iface, ns.Name, err)
	}
}

// AddDefaultRoute sends what no other route takes via a neighbour.
func (ns *Namespace) AddDefaultRoute(t testing.TB, iface string, via netip.Addr) {
	t.Helper()
	link, err := ns.nl.LinkByName(iface)
	if err != nil {
		t.Fatalf("find interface %s in %s: %v", iface, ns.Name, err)
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()}
	if err := ns.nl.RouteAdd(route); err != nil {
		t.Fatalf("add default route via %v in %s: %v", via, ns.Name, err)
	}
}

// Sysctl sets a net.* setting of the namespace, by its path below
// /proc/sys/net ("ipv6/conf/all/disable_ipv6").
func (ns *Namespace) Sysctl(t testing.TB, name, value string) {
	t.Helper()
	// The directory shows the namespace of the thread that opens it.
	err := ns.NS.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0)
	})
	if err != nil {
		t.Fatalf("set %s in %s: %v", name, ns.Name, err)
	}
}

// open makes the netlink sockets of the namespace.
func (ns *Namespace) open(t testing.TB) {
	t.Helper()
	err := ns.NS.Do(func() (err error) {
		ns.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		t.Fatalf("open netlink in network namespace: %v", err)
	}
	t.Cleanup(ns.nl.Close)
}

// reap removes the names that dead test processes left, this one's predecessor
// of the same id included.
func reap() {
	paths, err := filepath.Glob(filepath.Join(netns.NamesDir, namePrefix+"*-*"))
	if err != nil {
		return
	}
	for _, path := range paths {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), namePrefix), "-")
		if n, err := strconv.Atoi(pid); err == nil && (n == os.Getpid() || errors.Is(unix.Kill(n, 0), unix.ESRCH)) {
			// Another process may have been quicker.
			_ = netns.Unbind(filepath.Base(path))
		}
	}
}
