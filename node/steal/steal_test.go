package steal

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"trivet/internal/netns"
)

func TestStolenConnectionShowsBothAddresses(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	r.arm(t, 8080)
	for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
		conn := r.visit(t, dst)
		got, err := r.worker.Listener().Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if OriginalDst(got) != dst {
			t.Errorf("original destination %v, want %v", OriginalDst(got), dst)
		}
		if got.RemoteAddr().String() != conn.LocalAddr().String() {
			t.Errorf("visitor %v, want %v", got.RemoteAddr(), conn.LocalAddr())
		}
	}
	if n := counted(t, r.worker, func(s Stats) uint64 { return s.Stolen }); n < 2 {
		t.Errorf("%d stolen, want 2", n)
	}
}

func TestOnlyWhatIsArmedIsStolen(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	r.app(t, "tcp", ":9090", "other")
	answer(t, r.worker.Listener(), "steal")
	both := func(port uint16, want string) {
		t.Helper()
		for _, dst := range []netip.AddrPort{r.v4(port), r.v6(port)} {
			if got := r.whoAnswers(t, dst); got != want {
				t.Errorf("%v: %s answers, want %s", dst, got, want)
			}
		}
	}
	both(8080, "app")
	r.arm(t, 8080)
	both(8080, "steal")
	both(9090, "other")
	for _, k := range AnyAddress(8080) {
		if err := r.worker.Disarm(k); err != nil {
			t.Fatal(err)
		}
	}
	both(8080, "app")
	if n := counted(t, r.worker, func(s Stats) uint64 { return s.NotArmed }); n < 6 {
		t.Errorf("%d not armed, want 6", n)
	}
}

func TestFamiliesAreArmedApart(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	if err := r.worker.Arm(AnyAddress(8080)[1]); err != nil {
		t.Fatal(err)
	}
	if got := r.whoAnswers(t, r.v6(8080)); got != "steal" {
		t.Errorf("v6: %s answers", got)
	}
	if got := r.whoAnswers(t, r.v4(8080)); got != "app" {
		t.Errorf("v4: %s answers", got)
	}
}

// TestAddressesThatShareAPortAreToldApart is the case of several pods in one
// namespace.
func TestAddressesThatShareAPortAreToldApart(t *testing.T) {
	r := newRig(t)
	second := netip.AddrPortFrom(r.end.V4.Next(), 8080)
	r.pod.AddAddress(t, r.end.Iface, netip.PrefixFrom(second.Addr(), 24))
	second6 := netip.AddrPortFrom(r.end.V6.Next(), 8080)
	r.pod.AddAddress(t, r.end.Iface, netip.PrefixFrom(second6.Addr(), 64))
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
		if err := r.worker.Arm(TCPKey(dst)); err != nil {
			t.Fatal(err)
		}
		if got := r.whoAnswers(t, dst); got != "steal" {
			t.Errorf("%v: %s answers", dst, got)
		}
	}
	for _, dst := range []netip.AddrPort{second, second6} {
		if got := r.whoAnswers(t, dst); got != "app" {
			t.Errorf("%v: %s answers", dst, got)
		}
		if err := r.worker.Arm(TCPKey(dst)); err != nil {
			t.Fatal(err)
		}
		if got := r.whoAnswers(t, dst); got != "steal" {
			t.Errorf("%v armed: %s answers", dst, got)
		}
	}
}

func TestTwoPortsShareTheListener(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	r.arm(t, 8080)
	r.arm(t, 9090) // nobody listens there
	for _, port := range []uint16{8080, 9090} {
		r.visit(t, r.v4(port))
		got, err := r.worker.Listener().Accept()
		if err != nil {
			t.Fatal(err)
		}
		got.Close()
		if OriginalDst(got) != r.v4(port) {
			t.Errorf("original destination %v, want %v", OriginalDst(got), r.v4(port))
		}
	}
	keys, err := r.worker.ArmedKeys()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != 4 {
		t.Errorf("armed %v, want 4 keys", keys)
	}
}

func TestEstablishedConnectionsAreNotTouched(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
		before := r.visit(t, dst)
		if got := ask(t, before); got != "app" {
			t.Fatalf("unarmed: %s answers", got)
		}
		r.arm(t, 8080)
		stolen := r.visit(t, dst)
		for range 3 {
			if got := ask(t, before); got != "app" {
				t.Errorf("%v: connection from before was moved to %s", dst, got)
			}
			if got := ask(t, stolen); got != "steal" {
				t.Errorf("%v: new connection is answered by %s", dst, got)
			}
		}
		for _, k := range AnyAddress(8080) {
			if err := r.worker.Disarm(k); err != nil {
				t.Fatal(err)
			}
		}
		if got := ask(t, stolen); got != "steal" {
			t.Errorf("%v: stolen connection was moved to %s", dst, got)
		}
	}
}

func TestConnectionsToTheListenerItselfAreClosed(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	conn := r.visit(t, r.v4(r.att.ListenerAddr().Port()))
	if err := conn.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("read: %v, want the end", err)
	}
	if got := r.whoAnswers(t, r.v4(8080)); got != "steal" {
		t.Errorf("afterwards %s answers", got)
	}
	if n := counted(t, r.worker, func(s Stats) uint64 { return s.Direct }); n != 1 {
		t.Errorf("%d direct connections counted, want 1", n)
	}
}

func TestNamespaceWithoutIPv6(t *testing.T) {
	require(t)
	r := newBareRig(t, Options{StaleAfter: time.Hour})
	r.pod.Sysctl(t, "ipv6/conf/all/disable_ipv6", "1")
	att, err := Attach(r.pod.NS, r.beat, Options{StaleAfter: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { att.Close() })
	r.att = att
	r.worker = r.adopt(t)
	if err := r.worker.Beat(); err != nil {
		t.Fatal(err)
	}
	r.app(t, "tcp4", ":8080", "app")
	answer(t, r.worker.Listener(), "steal")
	r.arm(t, 8080)
	if got := r.whoAnswers(t, r.v4(8080)); got != "steal" {
		t.Errorf("%s answers", got)
	}
}

// TestIPv4OnlyListener has what Attach makes on a kernel without IPv6.
func TestIPv4OnlyListener(t *testing.T) {
	r := newRig(t)
	ln, err := netns.Listen(t.Context(), r.pod.NS, "tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	files, err := r.att.Files()
	if err != nil {
		t.Fatal(err)
	}
	files.Listener.Close()
	if files.Listener, err = listenerFile(ln); err != nil {
		t.Fatal(err)
	}
	w, err := Adopt(files)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	keys := AnyAddress(8080)
	if err := w.Arm(keys[0]); err != nil {
		t.Error(err)
	}
	if err := w.Arm(keys[1]); !errors.Is(err, ErrNoIPv6) {
		t.Errorf("IPv6 key: %v, want ErrNoIPv6", err)
	}
}

func TestKeysAreBounded(t *testing.T) {
	r := newRig(t)
	for i := range MaxKeys {
		if err := r.worker.Arm(AnyAddress(uint16(i + 1))[0]); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.worker.Arm(AnyAddress(1)[0]); err != nil {
		t.Errorf("arm an armed key again: %v", err)
	}
	if err := r.worker.Arm(AnyAddress(1000)[0]); !errors.Is(err, ErrTooManyKeys) {
		t.Errorf("got %v, want ErrTooManyKeys", err)
	}
	keys, err := r.worker.ArmedKeys()
	if err != nil || len(keys) != MaxKeys {
		t.Errorf("%d keys armed (%v), want %d", len(keys), err, MaxKeys)
	}
	if err := r.att.DisarmAll(); err != nil {
		t.Fatal(err)
	}
	if keys, err := r.worker.ArmedKeys(); err != nil || len(keys) != 0 {
		t.Errorf("%v armed (%v), want none", keys, err)
	}
}

func TestBadKeysAreRefused(t *testing.T) {
	r := newRig(t)
	for _, k := range []Key{{}, {Addr: r.end.V4}, {Port: 80}, {Addr: r.end.V4, Port: 80, Protocol: 17}} {
		if err := r.worker.Arm(k); err == nil {
			t.Errorf("armed %v", k)
		}
	}
	if err := r.worker.Disarm(AnyAddress(80)[0]); err != nil {
		t.Errorf("disarm what is not armed: %v", err)
	}
}

// TestCloseWhileInUse is for the race detector: descriptors must not be used
// once another goroutine closed them.
func TestCloseWhileInUse(t *testing.T) {
	r := newRig(t)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				err := errors.Join(r.worker.Arm(AnyAddress(80)[0]), r.worker.Disarm(AnyAddress(80)[0]), r.worker.Beat())
				if err == nil {
					_, err = r.worker.Stats()
				}
				if err != nil {
					if !errors.Is(err, os.ErrClosed) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	accepted := make(chan error)
	go func() {
		_, err := r.worker.Listener().Accept()
		accepted <- err
	}()
	if err := r.worker.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v, want ErrClosed", err)
	}
	wg.Wait()
	if err := r.worker.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}
