package pki

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"trivet/internal/errs"
)

// put replaces the bundle in dir.
func put(t *testing.T, dir string, b *Bundle) {
	t.Helper()
	for name, data := range map[string][]byte{RootFile: b.rootPEM, ChainFile: b.ChainPEM(), KeyFile: b.keyPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReloadReachesRunningConfigurations(t *testing.T) {
	t.Parallel()
	ca, next := newTestCA(t, "prod"), newTestCA(t, "prod")
	dir := t.TempDir()
	put(t, dir, issue(t, ca, RoleServer, "s1", time.Hour))
	server, err := OpenSource(dir, clockAt(testNow))
	if err != nil {
		t.Fatal(err)
	}
	conf := ServerConfig(server, Policy{Roles: Roles()})
	oldClient := ClientConfig(NewSource(issue(t, ca, RoleClient, "a", 0), clockAt(testNow)), Policy{})
	newClient := ClientConfig(NewSource(issue(t, next, RoleClient, "a", 0), clockAt(testNow)), Policy{})

	if out := shake(t, conf, oldClient); out.serverErr != nil {
		t.Fatalf("before reload: %v", out.serverErr)
	}
	renewed := issue(t, ca, RoleServer, "s1", 2*time.Hour)
	put(t, dir, renewed)
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	out := shake(t, conf, oldClient)
	if out.clientError != nil || !out.client.PeerCertificates[0].Equal(renewed.Leaf()) {
		t.Fatalf("after renewal: %v, or still the old certificate", out.clientError)
	}

	// Both roots are trusted while roots change.
	both := issue(t, next, RoleServer, "s1", time.Hour)
	both.rootPEM = append(ca.RootPEM(), next.RootPEM()...)
	put(t, dir, both)
	if err := server.Reload(); err != nil {
		t.Fatal(err)
	}
	if out := shake(t, conf, newClient); out.serverErr != nil || out.clientError != nil {
		t.Errorf("new root: server %v, client %v", out.serverErr, out.clientError)
	}
	oldClient.VerifyConnection = nil // it does not know the new root yet
	if out := shake(t, conf, oldClient); out.serverErr != nil {
		t.Errorf("old root: %v", out.serverErr)
	}
}

func TestFailedReloadKeepsTheOldBundle(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	first := issue(t, ca, RoleServer, "s1", time.Hour)
	for _, tc := range []struct {
		name string
		next *Bundle
		want string
	}{
		{"another identity", issue(t, ca, RoleServer, "s2", time.Hour), ReasonInvalid},
		{
			"expired",
			forge(t, ca, ca, forged{uris: []string{first.ID.String()}, notAfter: testNow.Add(-time.Minute)}), ReasonExpired,
		},
		{"half written", &Bundle{rootPEM: first.rootPEM, keyPEM: issue(t, ca, RoleServer, "s1", 0).keyPEM, chain: first.chain}, ReasonKeyMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, dir, first)
			src, err := OpenSource(dir, clockAt(testNow))
			if err != nil {
				t.Fatal(err)
			}
			before := src.Bundle()
			put(t, dir, tc.next)
			if err := src.Reload(); errs.Reason(err) != tc.want {
				t.Errorf("Reload: %v (%s), want %s", err, errs.Reason(err), tc.want)
			}
			if src.Bundle() != before {
				t.Error("the bundle changed")
			}
		})
	}
	if err := NewSource(first).Reload(); err == nil {
		t.Error("a source without directory reloaded")
	}
}
