package identity_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/seal"
)

// TestAllServersWereOffForTooLong: every server's certificate has ended, and
// still they come up, because each signs its own.
func TestAllServersWereOffForTooLong(t *testing.T) {
	var r *rig
	sources := make(map[string]*pki.Source)
	r = newRig(t, 3, func(c *cluster.Config) {
		if r == nil {
			return
		}
		id := pki.ID{Cluster: "test", Role: pki.RoleServer, Name: c.Name}
		b, err := r.CA.Issue(pki.Template{ID: id, TTL: time.Hour}, time.Now().AddDate(0, 0, -20))
		if err != nil {
			t.Fatal(err)
		}
		c.Source = pki.NewSource(b)
		// What came with the bundle is not at hand any more.
		c.Issuing, c.Keyring = nil, nil
		sources[c.Name] = c.Source
	})
	for _, m := range r.Servers {
		clustertest.Eventually(t, m.Name+" keeps the issuing CA", func() bool {
			_, err := os.Stat(filepath.Join(m.DataDir, "issuing.sealed"))
			return err == nil
		})
	}
	for _, m := range r.Servers {
		r.Stop(m)
	}
	for _, m := range r.Servers {
		r.Restart(m)
	}
	r.Leader()
	for name, src := range sources {
		if left := time.Until(src.Bundle().NotAfter); left < 6*24*time.Hour {
			t.Errorf("%s: %s left", name, left)
		}
	}
}

// TestAnotherKeyringIsNoticed: a server that cannot open what the cluster seals
// says so.
func TestAnotherKeyringIsNoticed(t *testing.T) {
	other, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	var r *rig
	r = newRig(t, 1, func(c *cluster.Config) {
		if r != nil {
			c.Keyring = other
		}
	})
	m := r.Servers[0]
	if level := keysCheck(m); level != cluster.LevelOK {
		t.Errorf("at first: %s", level)
	}
	r.Stop(m)
	if err := os.Remove(filepath.Join(m.DataDir, seal.FileName)); err != nil {
		t.Fatal(err)
	}
	r.Restart(m)
	r.Leader()
	clustertest.Eventually(t, "a warning", func() bool { return keysCheck(m) == cluster.LevelWarning })
	for _, c := range m.Server.Checks() {
		if c.Name == "keys" && c.Hint == "" {
			t.Errorf("no hint: %+v", c)
		}
	}
}

func keysCheck(m *clustertest.Member) string {
	for _, c := range m.Server.Checks() {
		if c.Name == "keys" {
			return c.Level
		}
	}
	return "none"
}

// TestServerWithoutAKeyringDoesNotStart, and says what to do.
func TestServerWithoutAKeyringDoesNotStart(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	_, err := cluster.Start(cluster.Config{
		Name: "server-9", DataDir: t.TempDir(), Listen: "127.0.0.1:0", Advertise: "127.0.0.1:1", Source: c.Source(pki.RoleServer, "server-9"),
		Peers: []cluster.Peer{{Name: "server-9", Address: "127.0.0.1:1"}},
	})
	if errs.Reason(err) != seal.ReasonBadKeyring || errs.From(err).Hint == "" {
		t.Errorf("got %v", err)
	}
}
