package steal

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// TestPodsOwnTrafficReachesTheApp covers what would loop: a sidecar's
// calls, and ours.
func TestPodsOwnTrafficReachesTheApp(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	before := counted(t, r.worker, func(s Stats) uint64 { return s.Self })
	dsts := []netip.AddrPort{
		r.v4(8080), r.v6(8080),
		netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.2:8080"),
		netip.MustParseAddrPort("[::1]:8080"),
	}
	for _, dst := range dsts {
		if got := ask(t, dialIn(t, r.pod.NS, dst)); got != "app" {
			t.Errorf("%v from the pod: %s answers", dst, got)
		}
	}
	if n := counted(t, r.worker, func(s Stats) uint64 { return s.Self }) - before; n < uint64(len(dsts)) {
		t.Errorf("%d connections to itself counted, want %d", n, len(dsts))
	}
	if got := r.whoAnswers(t, r.v4(8080)); got != "steal" {
		t.Errorf("from outside %s answers", got)
	}
}

func TestDialAppFindsTheApp(t *testing.T) {
	r := newRig(t)
	second := r.end.V4.Next()
	r.pod.AddAddress(t, r.end.Iface, netip.PrefixFrom(second, 24))
	answer(t, r.worker.Listener(), "steal")
	v4, v6 := r.end.V4.String(), r.end.V6.String()
	for i, tc := range []struct {
		name, network, listen string
		dst                   netip.Addr
	}{
		{"any IPv4", "tcp4", "", r.end.V4},
		{"any IPv6", "tcp6", "", r.end.V6},
		{"any, by IPv4", "tcp", "", r.end.V4},
		{"any, by IPv6", "tcp", "", r.end.V6},
		{"only the pod's IPv4", "tcp", v4, r.end.V4},
		{"only the pod's IPv6", "tcp", v6, r.end.V6},
		{"only IPv4 loopback", "tcp", "127.0.0.1", r.end.V4},
		{"only IPv6 loopback", "tcp", "::1", r.end.V6},
		{"secondary address", "tcp", second.String(), second},
		{"mapped address", "tcp", v4, netip.AddrFrom16(r.end.V4.As16())},
		{"address the pod does not have", "tcp", "127.0.0.1", netip.MustParseAddr("192.0.2.1")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			port := uint16(8000 + i)
			address := net.JoinHostPort(tc.listen, portString(port))
			r.app(t, tc.network, address, "app")
			r.arm(t, port)
			conn, err := r.worker.DialApp(t.Context(), netip.AddrPortFrom(tc.dst, port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got := ask(t, conn); got != "app" {
				t.Errorf("%s answers", got)
			}
		})
	}
}

func TestDialAppWithoutApp(t *testing.T) {
	r := newRig(t)
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
		conn, err := r.worker.DialApp(t.Context(), dst)
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v: %v, %v, want refused", dst, conn, err)
		}
		if got := r.whoAnswers(t, dst); got != "steal" {
			t.Errorf("%v from outside: %s answers", dst, got)
		}
	}
	for _, dst := range []netip.AddrPort{{}, netip.MustParseAddrPort("0.0.0.0:80"), r.v4(0)} {
		if conn, err := r.worker.DialApp(t.Context(), dst); err == nil {
			conn.Close()
			t.Errorf("connected to %v", dst)
		}
	}
}

// TestDialAppDoesNotUseUpPorts makes more connections at once to two ports
// than bind alone would have source ports for.
func TestDialAppDoesNotUseUpPorts(t *testing.T) {
	r := newRig(t)
	r.pod.Sysctl(t, "ipv4/ip_local_port_range", "50000 50009")
	for _, port := range []uint16{8080, 9090} {
		ln, err := netns.Listen(t.Context(), r.pod.NS, "tcp", ":"+portString(port))
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		for range 8 {
			conn, err := r.worker.DialApp(t.Context(), r.v4(port))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
		}
	}
}

func portString(port uint16) string {
	_, s, _ := net.SplitHostPort(netip.AddrPortFrom(loopback4, port).String())
	return s
}
