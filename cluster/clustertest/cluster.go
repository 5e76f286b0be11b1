// Package clustertest runs whole managers in one process for tests: real
// servers with real certificates, ports on loopback and logs on disk.
package clustertest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	"trivet/cluster"
	"trivet/cluster/identity"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/internal/seal"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Wait bounds every wait for something that has to happen; it is generous
// because the machine may be busy, and never slept through.
const Wait = 30 * time.Second

// Cluster is a running manager. Tests own it through the testing.TB they gave.
type Cluster struct {
	T  testing.TB
	CA *pki.CA
	// Keyring is the seal keys that the servers start with, Issuing the sealed
	// issuing CA that they bring into the state.
	Keyring *seal.Keyring
	Issuing []byte
	Dir     string
	Servers []*Member
	tune    func(*cluster.Config)
}

// Member is one server.
type Member struct {
	Name, Address, DataDir string
	// Server is nil while the member is down.
	Server *cluster.Server
	source *pki.Source
	// later: it joins the first ones.
	later bool
}

// Start starts n servers and waits for a leader. tune may change each server's
// configuration. Everything stops with the test.
func Start(t testing.TB, n int, tune func(*cluster.Config)) *Cluster {
	t.Helper()
	dir := t.TempDir()
	// Old enough that certificates can have ended.
	ca, err := pki.InitCA(filepath.Join(dir, "ca"), "test", time.Now().AddDate(0, -1, 0))
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{T: t, CA: ca, Dir: dir, tune: tune}
	if c.Keyring, err = seal.New(); err != nil {
		t.Fatal(err)
	}
	if c.Issuing, err = identity.SealIssuing(c.Keyring, ca); err != nil {
		t.Fatal(err)
	}
	listeners := make([]net.Listener, n)
	for i := range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = ln
		name := fmt.Sprintf("server-%d", i+1)
		c.Servers = append(c.Servers, &Member{
			Name: name, Address: ln.Addr().String(), DataDir: filepath.Join(dir, name), source: c.Source(pki.RoleServer, name),
		})
	}
	for i, m := range c.Servers {
		c.start(m, listeners[i])
	}
	t.Cleanup(c.stop)
	c.Leader()
	return c
}

func (c *Cluster) start(m *Member, ln net.Listener) {
	c.T.Helper()
	s, err := cluster.Start(c.config(m, ln))
	if err != nil {
		c.T.Fatalf("start %s: %v", m.Name, err)
	}
	m.Server = s
}

// config makes a member's configuration; without a listener it listens at its
// address.
func (c *Cluster) config(m *Member, ln net.Listener) cluster.Config {
	cfg := cluster.Config{
		Name: m.Name, DataDir: m.DataDir, Listener: ln, Listen: m.Address, Advertise: m.Address, Source: m.source,
		Keyring: c.Keyring, Issuing: c.Issuing,
		Logger: slog.New(slog.NewTextHandler(testWriter{c.T}, &slog.HandlerOptions{Level: slog.LevelWarn})).With("server", m.Name),
		// The race detector and other packages' tests share two cores.
		Multiplier: 2, DrainTimeout: time.Second, Version: "v0.0.0-test",
	}
	for _, p := range c.Servers {
		switch {
		case !p.later && !m.later:
			cfg.Peers = append(cfg.Peers, cluster.Peer{Name: p.Name, Address: p.Address})
		case !p.later:
			cfg.Join = append(cfg.Join, p.Address)
		}
	}
	if c.tune != nil {
		c.tune(&cfg)
	}
	return cfg
}

// Join starts a server that joins the running ones, and returns at once.
func (c *Cluster) Join(name string) *Member {
	c.T.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.T.Fatal(err)
	}
	m := &Member{
		Name: name, Address: ln.Addr().String(), DataDir: c.T.TempDir(), source: c.Source(pki.RoleServer, name), later: true,
	}
	c.Servers = append(c.Servers, m)
	c.start(m, ln)
	return m
}

// Forget drops a stopped member from the list.
func (c *Cluster) Forget(m *Member) {
	c.Servers = slices.DeleteFunc(c.Servers, func(x *Member) bool { return x == m })
}

// Restart starts a member that was stopped, on its old data and address.
func (c *Cluster) Restart(m *Member) {
	c.T.Helper()
	var ln net.Listener
	var err error
	Eventually(c.T, "the old port is free", func() bool {
		ln, err = net.Listen("tcp", m.Address)
		return err == nil
	})
	c.start(m, ln)
}

// TryRestart is Restart for a member that must not start: it returns the error,
// or fails the test and stops the member.
func (c *Cluster) TryRestart(m *Member) error {
	c.T.Helper()
	s, err := cluster.Start(c.config(m, nil))
	if err == nil {
		c.T.Errorf("%s started", m.Name)
		if err := s.Close(); err != nil {
			c.T.Errorf("stop %s: %v", m.Name, err)
		}
	}
	return err
}

// Stop shuts a member down in order.
func (c *Cluster) Stop(m *Member) {
	c.T.Helper()
	if m.Server == nil {
		return
	}
	if err := m.Server.Close(); err != nil {
		c.T.Errorf("stop %s: %v", m.Name, err)
	}
	m.Server = nil
}

func (c *Cluster) stop() {
	for _, m := range c.Servers {
		c.Stop(m)
	}
}

// Source issues a certificate.
func (c *Cluster) Source(role pki.Role, name string) *pki.Source {
	c.T.Helper()
	b, err := c.CA.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}, TTL: time.Hour}, time.Now())
	if err != nil {
		c.T.Fatal(err)
	}
	return pki.NewSource(b)
}

// Leader waits until a running member leads and every running member knows it,
// and returns it.
func (c *Cluster) Leader() *Member {
	c.T.Helper()
	var leader *Member
	defer func() {
		if c.T.Failed() {
			c.explain()
		}
	}()
	Eventually(c.T, "a leader that all servers know", func() bool {
		leader = nil
		for _, m := range c.Servers {
			if m.Server == nil {
				continue
			}
			if !m.Server.Ready() {
				return false
			}
			if m.Server.IsLeader() {
				leader = m
			}
		}
		return leader != nil
	})
	return leader
}

// explain logs what is wrong with the running members.
func (c *Cluster) explain() {
	for _, m := range c.Servers {
		if m.Server == nil {
			continue
		}
		for _, x := range m.Server.Checks() {
			if x.Level == cluster.LevelCritical {
				c.T.Logf("%s: %s: %s", m.Name, x.Name, x.Message)
			}
		}
	}
}

// Followers lists the running members that do not lead.
func (c *Cluster) Followers() []*Member {
	leader := c.Leader()
	var out []*Member
	for _, m := range c.Servers {
		if m.Server != nil && m != leader {
			out = append(out, m)
		}
	}
	return out
}

// Conn dials one member as an identity; it closes with the test.
func (c *Cluster) Conn(m *Member, role pki.Role, name string) *grpc.ClientConn {
	c.T.Helper()
	return c.ConnWith(m, c.Source(role, name))
}

// ConnWith dials one member with a certificate of the caller's.
func (c *Cluster) ConnWith(m *Member, src *pki.Source) *grpc.ClientConn {
	c.T.Helper()
	conf := pki.ClientConfig(src, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleServer}})
	cc, err := grpc.NewClient("passthrough:///"+m.Address, grpc.WithTransportCredentials(
		portmux.ClientCredentials(conf, func(err error) error { return pki.ExplainHandshake(err, src) })))
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { cc.Close() })
	return cc
}

// SameDigests waits until all running servers show the same revision and fails
// the test if their digests differ.
func (c *Cluster) SameDigests() {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Wait)
	defer cancel()
	var answers []*operatorv1.DigestResponse
	Eventually(c.T, "all servers show the same revision", func() bool {
		answers = answers[:0]
		for _, m := range c.Servers {
			if m.Server == nil {
				continue
			}
			d, err := operatorsvc.NewOperatorClient(c.Conn(m, pki.RoleOperator, "digest")).Digest(ctx, &operatorv1.DigestRequest{})
			if err != nil {
				return false
			}
			answers = append(answers, d)
		}
		for _, a := range answers {
			if a.GetRevision() != answers[0].GetRevision() {
				return false
			}
		}
		return len(answers) > 0
	})
	for _, a := range answers {
		if string(a.GetDigest()) != string(answers[0].GetDigest()) {
			c.T.Errorf("digests differ at revision %d: %s has %x, %s has %x",
				a.GetRevision(), answers[0].GetServer(), answers[0].GetDigest(), a.GetServer(), a.GetDigest())
		}
	}
}

// Eventually polls until ok and fails the test when Wait is over. It is for
// things that give no event to wait for.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(Wait)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("gave up after %s: %s", Wait, what)
		}
	}
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}
