package portmux

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/internal/pki"
)

const (
	alpnRaft = "trivet-raft/1"
	// patience bounds every wait of these tests; none takes that long.
	patience = 20 * time.Second
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster issues certificates.
type cluster struct {
	t  *testing.T
	ca *pki.CA
}

func newCluster(t *testing.T) cluster {
	t.Helper()
	ca, err := pki.InitCA(filepath.Join(t.TempDir(), "ca"), "prod", time.Now().Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	return cluster{t, ca}
}

// source issues a certificate for an hour from start on.
func (c cluster) source(role pki.Role, name string, start time.Time) *pki.Source {
	c.t.Helper()
	id := pki.ID{Cluster: "prod", Role: role, Name: name}
	b, err := c.ca.Issue(pki.Template{ID: id, TTL: time.Hour}, start)
	if err != nil {
		c.t.Fatal(err)
	}
	return pki.NewSource(b)
}

// client returns the configuration of a peer that asks for alpn.
func (c cluster) client(role pki.Role, alpn ...string) *tls.Config {
	c.t.Helper()
	return pki.ClientConfig(c.source(role, "peer", time.Now()), pki.Policy{ALPN: alpn})
}

// server returns the configuration of a server.
func (c cluster) server() *tls.Config {
	c.t.Helper()
	return pki.ServerConfig(c.source(pki.RoleServer, "s1", time.Now()), pki.Policy{
		ALPN:     []string{alpnH2, alpnRaft},
		Roles:    pki.Roles(),
		RolesFor: map[string][]pki.Role{alpnRaft: {pki.RoleServer}},
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// serve runs m until the test ends, and checks that it ends well.
func serve(t *testing.T, m *Mux) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- m.Serve(context.Background()) }()
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
}

// start serves the ports of a fresh cluster.
func start(t *testing.T, opts Options) (cluster, *Mux) {
	t.Helper()
	c := newCluster(t)
	m := New(listen(t), c.server(), opts)
	serve(t, m)
	return c, m
}

// dial connects without TLS.
func dial(t *testing.T, m *Mux) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", m.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return nc
}

// dialTLS connects and does the handshake.
func dialTLS(t *testing.T, m *Mux, conf *tls.Config) *tls.Conn {
	t.Helper()
	tc := tls.Client(dial(t, m), conf)
	if err := tc.Handshake(); err != nil {
		t.Fatalf("handshake: %v", err)
	}
	return tc
}

// accept takes one connection of l.
func accept(t *testing.T, l net.Listener) *tls.Conn {
	t.Helper()
	type result struct {
		nc  net.Conn
		err error
	}
	got := make(chan result, 1)
	go func() {
		nc, err := l.Accept()
		got <- result{nc, err}
	}()
	select {
	case r := <-got:
		if r.err != nil {
			t.Fatalf("accept: %v", r.err)
		}
		t.Cleanup(func() { _ = r.nc.Close() })
		return r.nc.(*tls.Conn)
	case <-time.After(patience):
		t.Fatal("nothing to accept")
		return nil
	}
}

// closed waits until the peer closed nc.
func closed(t *testing.T, nc net.Conn) {
	t.Helper()
	_, err := io.Copy(io.Discard, nc)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		t.Fatalf("the connection is still open: %v", err)
	}
}

// eventually waits for what a peer cannot see from outside.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// rejected returns the counters that are not zero.
func rejected(m *Mux) map[Reason]uint64 {
	got := map[Reason]uint64{}
	for r, n := range m.Stats().Rejected {
		if n > 0 {
			got[r] = n
		}
	}
	return got
}

// echo sends one word both ways.
func echo(t *testing.T, a, b net.Conn) {
	t.Helper()
	for _, end := range [][2]net.Conn{{a, b}, {b, a}} {
		if _, err := io.WriteString(end[0], "word"); err != nil {
			t.Fatalf("write: %v", err)
		}
		buf := make([]byte, 4)
		if _, err := io.ReadFull(end[1], buf); err != nil || string(buf) != "word" {
			t.Fatalf("read %q: %v", buf, err)
		}
	}
}
