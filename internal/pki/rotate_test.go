package pki

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"trivet/internal/errs"
)

func TestRotateIssuing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	old, err := InitCA(dir, "prod", testNow)
	if err != nil {
		t.Fatal(err)
	}
	before := issue(t, old, RoleServer, "s1", 24*time.Hour)
	next, err := PrepareIssuing(dir, testNow)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := PrepareIssuing(dir, testNow); err != nil || !again.Issuing().Equal(next.Issuing()) {
		t.Errorf("prepared twice: %v", err)
	}
	if ca, err := LoadCA(dir); err != nil || !ca.Issuing().Equal(old.Issuing()) {
		t.Errorf("in use before it was committed: %v", err)
	}
	for range 2 {
		if err := CommitIssuing(dir); err != nil {
			t.Fatal(err)
		}
		if ca, err := LoadCA(dir); err != nil || !ca.Issuing().Equal(next.Issuing()) || ca.Cluster != "prod" {
			t.Errorf("not in use: %v", err)
		}
	}
	// Old and new leaves trust each other.
	server := ServerConfig(NewSource(before, clockAt(testNow)), Policy{ALPN: []string{"h2"}, Roles: Roles()})
	client := NewSource(issue(t, next, RoleClient, "alice", time.Hour), clockAt(testNow))
	if got := shake(t, server, ClientConfig(client, Policy{ALPN: []string{"h2"}})); got.serverErr != nil || got.clientError != nil {
		t.Errorf("got %v, %v", got.serverErr, got.clientError)
	}
}

// TestRotateSurvivesACrashAtEachStep: each set of files that a crash can leave
// is one CA or the other, and the rotation can be done again.
func TestRotateSurvivesACrashAtEachStep(t *testing.T) {
	t.Parallel()
	mv := func(dir, from, to string) error { return os.Rename(filepath.Join(dir, from), filepath.Join(dir, to)) }
	for name, crash := range map[string]func(dir string) error{
		"only the key was written": func(dir string) error { return os.Remove(filepath.Join(dir, caNextCert)) },
		"prepared":                 func(string) error { return nil },
		"only the key was moved":   func(dir string) error { return mv(dir, caNextKey, caIssuingKey) },
		"committed":                CommitIssuing,
	} {
		dir := filepath.Join(t.TempDir(), "ca")
		if _, err := InitCA(dir, "prod", testNow); err != nil {
			t.Fatal(err)
		}
		if _, err := PrepareIssuing(dir, testNow); err != nil {
			t.Fatal(err)
		}
		if err := crash(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadCA(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		next, err := PrepareIssuing(dir, testNow)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := CommitIssuing(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if ca, err := LoadCA(dir); err != nil || !ca.Issuing().Equal(next.Issuing()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRotateNeedsTheRootsKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	if _, err := InitCA(dir, "prod", testNow); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, caRootKey)); err != nil {
		t.Fatal(err)
	}
	if _, err := PrepareIssuing(dir, testNow); errs.Reason(err) != ReasonFilesMissing || errs.From(err).Hint == "" {
		t.Errorf("got %v", err)
	}
}

func TestParseCA(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	cert, key, err := ca.IssuingPEM()
	otherCert, otherKey, err2 := foreign.IssuingPEM()
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	got, err := ParseCA(append(foreign.RootPEM(), ca.RootPEM()...), cert, key)
	if err != nil || got.Cluster != "prod" || !got.Root().Equal(ca.Root()) {
		t.Errorf("with two roots: %v, %v", got, err)
	}
	for _, c := range []struct {
		roots, cert, key []byte
		want             string
	}{
		{ca.RootPEM(), otherCert, otherKey, ReasonForeignCA},
		{ca.RootPEM(), cert, otherKey, ReasonKeyMismatch},
		{ca.RootPEM(), ca.RootPEM(), key, ReasonKeyMismatch},
		{ca.RootPEM(), nil, key, ReasonInvalid},
		{ca.RootPEM(), cert, nil, ReasonInvalid},
	} {
		if _, err := ParseCA(c.roots, c.cert, c.key); errs.Reason(err) != c.want {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
