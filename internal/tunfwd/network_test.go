package tunfwd_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
	"trivet/internal/tunfwd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// within bounds every wait for the outside world.
const within = 10 * time.Second

// hosts makes a network with these hosts.
func hosts(t *testing.T, o tunfwd.Options, names ...string) (*tunfwd.Network, []*tunfwd.Host) {
	t.Helper()
	netnstest.Require(t)
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		t.Skipf("SKIP reason: no TUN devices here: %v", err)
	}
	n := tunfwd.New(o)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	var out []*tunfwd.Host
	for _, name := range names {
		h, err := n.Add(name)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, h)
	}
	return n, out
}

// socket is a UDP socket of a host on port 9.
func socket(t *testing.T, h *tunfwd.Host) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := h.NS.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: h.Addr.AsSlice(), Port: 9})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, from *net.UDPConn, to *tunfwd.Host, payload string) {
	t.Helper()
	if _, err := from.WriteToUDP([]byte(payload), &net.UDPAddr{IP: to.Addr.AsSlice(), Port: 9}); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, c *net.UDPConn) string {
	t.Helper()
	buf := make([]byte, 2000)
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// taken returns when all that from has sent so far was taken from its device,
// with the help of another host: a host's packets are taken in order.
func taken(t *testing.T, from *net.UDPConn, marker *tunfwd.Host) {
	t.Helper()
	to := socket(t, marker)
	send(t, from, marker, "marker")
	if got := receive(t, to); got != "marker" {
		t.Fatalf("got %q", got)
	}
}

// count waits until the pair's counters are so.
func count(t *testing.T, n *tunfwd.Network, from, to string, ok func(tunfwd.Counters) bool) tunfwd.Counters {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		c := n.Counters()[tunfwd.Pair{From: from, To: to}]
		if ok(c) {
			return c
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s>%s: %+v", from, to, c)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestTCPBetweenHosts(t *testing.T) {
	n, h := hosts(t, tunfwd.Options{}, "a", "b")
	ln, err := netns.Listen(t.Context(), h[1].NS, "tcp4", ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const size = 4 << 20
	got := make(chan int64, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			got <- -1
			return
		}
		defer c.Close()
		n, _ := io.Copy(io.Discard, c)
		got <- n
	}()
	c, err := netns.Dial(t.Context(), h[0].NS, "tcp", h[1].Addr.String()+":80", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if g := <-got; g != size {
		t.Errorf("%d bytes arrived, want %d", g, size)
	}
	count(t, n, "a", "b", func(c tunfwd.Counters) bool { return c.Bytes >= size })
}

func TestCutIsOfOneDirection(t *testing.T) {
	n, h := hosts(t, tunfwd.Options{}, "a", "b", "c")
	a, b, c := socket(t, h[0]), socket(t, h[1]), socket(t, h[2])
	if err := n.Set("a", "b", tunfwd.Rule{Cut: true}); err != nil {
		t.Fatal(err)
	}
	send(t, a, h[1], "lost")
	count(t, n, "a", "b", func(c tunfwd.Counters) bool { return c.Cut == 1 })
	send(t, b, h[0], "back")
	send(t, a, h[2], "aside")
	if got := receive(t, a); got != "back" {
		t.Errorf("a got %q", got)
	}
	if got := receive(t, c); got != "aside" {
		t.Errorf("c got %q", got)
	}
	n.Heal()
	send(t, a, h[1], "healed")
	if got := receive(t, b); got != "healed" {
		t.Errorf("b got %q, want only what was sent after the cut", got)
	}
	want := tunfwd.Counters{Packets: 1, Bytes: 20 + 8 + 6, Cut: 1}
	got := n.Counters()[tunfwd.Pair{From: "a", To: "b"}]
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("counters (-want +got):\n%s", d)
	}
}

func TestLossIsAProbabilityAndRepeatable(t *testing.T) {
	const packets = 1000
	fates := func() tunfwd.Counters {
		n, h := hosts(t, tunfwd.Options{Seed: 7}, "a", "b")
		a := socket(t, h[0])
		socket(t, h[1])
		if err := n.Set("a", "b", tunfwd.Rule{Loss: 0.3}); err != nil {
			t.Fatal(err)
		}
		for range packets {
			send(t, a, h[1], "x")
		}
		return count(t, n, "a", "b", func(c tunfwd.Counters) bool { return c.Packets+c.Dropped() == packets })
	}
	first, second := fates(), fates()
	if first.Lost < 200 || first.Lost > 400 {
		t.Errorf("%d of %d were lost, want about 300", first.Lost, packets)
	}
	if first != second {
		t.Errorf("the same seed gave %+v and %+v", first, second)
	}
}

func TestDelayKeepsOrderDespiteJitter(t *testing.T) {
	n, h := hosts(t, tunfwd.Options{}, "a", "b", "c")
	a, b := socket(t, h[0]), socket(t, h[1])
	const delay = 50 * time.Millisecond
	if err := n.Set("a", "b", tunfwd.Rule{Delay: delay, Jitter: 20 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for i := range 50 {
		send(t, a, h[1], string(rune('A'+i)))
	}
	taken(t, a, h[2])
	// What comes after the rule is gone stays behind what waits.
	n.Heal()
	send(t, a, h[1], "last")
	for i := range 50 {
		got := receive(t, b)
		if i == 0 && time.Since(begin) < delay {
			t.Errorf("the first packet took %s", time.Since(begin))
		}
		if got != string(rune('A'+i)) {
			t.Fatalf("packet %d is %q", i, got)
		}
	}
	if got := receive(t, b); got != "last" {
		t.Errorf("got %q after the others", got)
	}
	if c := n.Counters()[tunfwd.Pair{From: "a", To: "b"}]; c.Waited < 50 {
		t.Errorf("%d packets waited", c.Waited)
	}
}

func TestCutDropsWhatWaits(t *testing.T) {
	n, h := hosts(t, tunfwd.Options{}, "a", "b", "c")
	a := socket(t, h[0])
	if err := n.Set("a", "b", tunfwd.Rule{Delay: 200 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	send(t, a, h[1], "late")
	taken(t, a, h[2])
	if err := n.Set("a", "b", tunfwd.Rule{Cut: true}); err != nil {
		t.Fatal(err)
	}
	got := count(t, n, "a", "b", func(c tunfwd.Counters) bool { return c.Cut == 1 })
	if got.Packets != 0 {
		t.Errorf("%+v", got)
	}
}

func TestRateAndItsBound(t *testing.T) {
	const queue, size = 10_000, 972
	n, h := hosts(t, tunfwd.Options{Queue: queue}, "a", "b")
	a, b := socket(t, h[0]), socket(t, h[1])
	if err := n.Set("a", "b", tunfwd.Rule{Rate: 100_000}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	const packets = 30 // of 1000 bytes with their headers
	for range packets {
		send(t, a, h[1], string(make([]byte, size)))
	}
	c := count(t, n, "a", "b", func(c tunfwd.Counters) bool { return c.Packets+c.Dropped() == packets })
	if c.Overflow < 10 || c.Packets < 10 {
		t.Errorf("%+v: want about 10 queued and 20 dropped", c)
	}
	for range c.Packets {
		receive(t, b)
	}
	if want := time.Duration(c.Packets) * 10 * time.Millisecond; time.Since(begin) < want {
		t.Errorf("%d packets took %s, want at least %s", c.Packets, time.Since(begin), want)
	}
}

func TestMisuse(t *testing.T) {
	n, _ := hosts(t, tunfwd.Options{}, "a", "b")
	if _, err := n.Add("a"); err == nil {
		t.Error("two hosts of one name")
	}
	if err := n.Set("a", "nobody", tunfwd.Rule{}); err == nil {
		t.Error("a rule for nobody")
	}
	for _, r := range []tunfwd.Rule{{Loss: 1.1}, {Loss: -1}, {Delay: -1}, {Jitter: -1}, {Rate: -1}} {
		if err := n.SetBoth("a", "b", r); err == nil {
			t.Errorf("%+v was taken", r)
		}
	}
	if len(n.Rules()) != 0 {
		t.Errorf("rules: %v", n.Rules())
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Add("late"); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a host after the end: %v", err)
	}
}
