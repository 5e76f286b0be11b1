package steal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv(childEnv); mode != "" {
		childMain(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

// require skips when this machine cannot steal, for the reason that Probe
// gives.
func require(t testing.TB) {
	t.Helper()
	err := Probe()
	var missing *ErrUnsupported
	if errors.As(err, &missing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// answerTimeout bounds every wait of a test for the other side.
const answerTimeout = 10 * time.Second

// rig is a visitor and a pod, joined by a cable, and an attachment to the pod
// with a worker in this process.
type rig struct {
	visitor, pod *netnstest.Namespace
	end          netnstest.End // the pod's
	beat         *Beat
	att          *Attachment
	worker       *Worker
}

// newRig makes a rig. The heartbeat is fresh for the whole test unless the
// test writes it.
func newRig(t *testing.T) *rig {
	t.Helper()
	r := newBareRig(t, Options{StaleAfter: time.Hour})
	r.worker = r.adopt(t)
	if err := r.worker.Beat(); err != nil {
		t.Fatal(err)
	}
	return r
}

// newBareRig makes a rig without a worker and without a heartbeat.
func newBareRig(t *testing.T, opts Options) *rig {
	t.Helper()
	require(t)
	r := &rig{visitor: netnstest.New(t), pod: netnstest.New(t)}
	_, r.end = netnstest.Connect(t, r.visitor, r.pod)
	var err error
	if r.beat, err = NewBeat(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.beat.Close() })
	if r.att, err = Attach(r.pod.NS, r.beat, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.att.Close() })
	return r
}

func (r *rig) adopt(t *testing.T) *Worker {
	t.Helper()
	files, err := r.att.Files()
	if err != nil {
		t.Fatal(err)
	}
	w, err := Adopt(files)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// arm arms a port on all addresses.
func (r *rig) arm(t *testing.T, port uint16) {
	t.Helper()
	for _, k := range AnyAddress(port) {
		if err := r.worker.Arm(k); err != nil {
			t.Fatal(err)
		}
	}
}

// app starts an app in the pod that answers with a name.
func (r *rig) app(t *testing.T, network, address, name string) {
	t.Helper()
	ln, err := netns.Listen(t.Context(), r.pod.NS, network, address)
	if err != nil {
		t.Fatal(err)
	}
	answer(t, ln, name)
}

// v4 and v6 are the pod's addresses with a port.
func (r *rig) v4(port uint16) netip.AddrPort { return netip.AddrPortFrom(r.end.V4, port) }
func (r *rig) v6(port uint16) netip.AddrPort { return netip.AddrPortFrom(r.end.V6, port) }

// visit connects from the visitor's side.
func (r *rig) visit(t *testing.T, addr netip.AddrPort) net.Conn {
	t.Helper()
	return dialIn(t, r.visitor.NS, addr)
}

// whoAnswers connects from the visitor's side and returns who answered.
func (r *rig) whoAnswers(t *testing.T, addr netip.AddrPort) string {
	t.Helper()
	conn := r.visit(t, addr)
	defer conn.Close()
	return ask(t, conn)
}

func dialIn(t *testing.T, ns *netns.Handle, addr netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	conn, err := netns.Dial(ctx, ns, "tcp", addr.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// answer serves a listener until the test ends: every line gets the name and
// the address that the connection says it has.
func answer(t testing.TB, ln net.Listener, name string) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() { reply(conn, name) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
}

func reply(conn net.Conn, name string) {
	defer conn.Close()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if _, err := fmt.Fprintln(conn, name); err != nil {
			return
		}
	}
}

// tryAsk asks a connection for its name.
func tryAsk(conn net.Conn, timeout time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintln(conn, "who?"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", err
	}
	return line[:len(line)-1], nil
}

func ask(t *testing.T, conn net.Conn) string {
	t.Helper()
	name, err := tryAsk(conn, answerTimeout)
	if err != nil {
		t.Fatalf("ask %v: %v", conn.RemoteAddr(), err)
	}
	return name
}

// counted returns one counter of a backend.
func counted(t *testing.T, b Backend, get func(Stats) uint64) uint64 {
	t.Helper()
	s, err := b.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return get(s)
}
