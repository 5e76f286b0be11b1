package pki

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"trivet/internal/errs"
)

// signer answers requests as a server does, and counts the keys asked for.
type signer struct {
	t    *testing.T
	ca   *CA
	id   ID
	now  time.Time
	err  error
	mu   sync.Mutex
	keys []string
}

func (s *signer) sign(_ context.Context, csr []byte) (Signed, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	digest, err := CSRKeyDigest(csr)
	if err != nil {
		s.t.Error(err)
	}
	if !slices.Contains(s.keys, string(digest)) {
		s.keys = append(s.keys, string(digest))
	}
	if s.err != nil {
		return Signed{}, s.err
	}
	chain, err := s.ca.SignCSR(csr, Template{ID: s.id}, s.now)
	return Signed{Chain: chain, Roots: s.ca.RootPEM()}, err
}

func newSigner(t *testing.T) *signer {
	ca := newTestCA(t, "prod")
	return &signer{t: t, ca: ca, id: ID{"prod", RoleNode, "n1"}, now: testNow}
}

func TestObtainAsksForTheSameKeyAgain(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	dir := filepath.Join(t.TempDir(), "bundle")
	s.err = errors.New("the answer is lost")
	for range 2 {
		if _, err := Obtain(t.Context(), dir, s.sign); !errors.Is(err, s.err) {
			t.Fatal(err)
		}
	}
	s.err = nil
	b, err := Obtain(t.Context(), dir, s.sign)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.keys) != 1 {
		t.Errorf("%d keys were asked for, want one", len(s.keys))
	}
	got, err := LoadBundle(dir)
	if err != nil || !got.Leaf().Equal(b.Leaf()) || got.ID != s.id {
		t.Errorf("on disk: %v, %v", got, err)
	}
	for _, name := range []string{RootFile, ChainFile, KeyFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestRenewChangesKeyAndFiles(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	dir := t.TempDir()
	if _, err := Obtain(t.Context(), dir, s.sign); err != nil {
		t.Fatal(err)
	}
	s.now = testNow.Add(20 * time.Hour)
	src, err := OpenSource(dir, clockAt(s.now))
	if err != nil {
		t.Fatal(err)
	}
	sharing, err := OpenSource(dir, clockAt(s.now))
	if err != nil {
		t.Fatal(err)
	}
	old := src.Bundle()
	if err := src.Renew(t.Context(), s.sign); err != nil {
		t.Fatal(err)
	}
	if got := src.Bundle(); !got.NotAfter.After(old.NotAfter) || len(s.keys) != 2 {
		t.Errorf("ends %v, was %v; %d keys", got.NotAfter, old.NotAfter, len(s.keys))
	}
	// Another process with the same files takes what is there.
	if err := sharing.Renew(t.Context(), s.sign); err != nil {
		t.Fatal(err)
	}
	if !sharing.Bundle().Leaf().Equal(src.Bundle().Leaf()) || len(s.keys) != 2 {
		t.Errorf("the other process asked too: %d keys", len(s.keys))
	}
}

// TestReplaceSurvivesACrashAtEachStep: whatever was the last step, there is a
// bundle, and it can be replaced again.
func TestReplaceSurvivesACrashAtEachStep(t *testing.T) {
	t.Parallel()
	crash := errors.New("crash")
	for _, at := range []string{"key", "roots", "chain", "sync", "next"} {
		s := newSigner(t)
		dir := t.TempDir()
		first, err := Obtain(t.Context(), dir, s.sign)
		if err != nil {
			t.Fatal(err)
		}
		keyPEM, csr, err := nextKey(dir)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(time.Hour)
		second, err := ask(t.Context(), s.sign, csr, keyPEM, dir)
		if err != nil {
			t.Fatal(err)
		}
		err = second.replace(dir, func(step string) error {
			if step == at {
				return crash
			}
			return nil
		})
		if !errors.Is(err, crash) {
			t.Fatalf("%s: %v", at, err)
		}
		got, err := LoadBundle(dir)
		if err != nil {
			t.Errorf("after %s: %v", at, err)
			continue
		}
		want := second
		if at == "key" || at == "roots" {
			want = first
		}
		if !got.Leaf().Equal(want.Leaf()) {
			t.Errorf("after %s: the wrong bundle is there", at)
		}
		if again, err := LoadBundle(dir); err != nil || !again.Leaf().Equal(want.Leaf()) {
			t.Errorf("after %s, read again: %v", at, err)
		}
		if _, err := Obtain(t.Context(), dir, s.sign); err != nil {
			t.Errorf("after %s: %v", at, err)
		}
	}
}

func TestRenewWithoutFiles(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	src := NewSource(issue(t, s.ca, RoleNode, "n1", time.Hour), clockAt(testNow))
	if err := src.Renew(t.Context(), s.sign); err != nil {
		t.Fatal(err)
	}
	if !src.Bundle().NotAfter.Equal(testNow.Add(24 * time.Hour)) {
		t.Errorf("ends %v", src.Bundle().NotAfter)
	}
	s.id.Name = "n2"
	if err := src.Renew(t.Context(), s.sign); errs.Reason(err) != ReasonInvalid {
		t.Errorf("another's certificate: %v", err)
	}
}

func TestRenewWithoutAPlaceToWrite(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	dir := t.TempDir()
	if _, err := Obtain(t.Context(), dir, s.sign); err != nil {
		t.Fatal(err)
	}
	s.now = testNow.Add(20 * time.Hour)
	src, err := OpenSource(dir, clockAt(s.now))
	if err != nil {
		t.Fatal(err)
	}
	err = src.Renew(t.Context(), func(ctx context.Context, csr []byte) (Signed, error) {
		// Nothing can be renamed over a folder.
		chain := filepath.Join(dir, ChainFile)
		if err := errors.Join(os.Remove(chain), os.MkdirAll(filepath.Join(chain, "x"), 0o700)); err != nil {
			return Signed{}, err
		}
		return s.sign(ctx, csr)
	})
	if errs.Reason(err) != ReasonNotStored {
		t.Errorf("got %v, want %s", err, ReasonNotStored)
	}
	if !src.Bundle().NotAfter.Equal(s.now.Add(24 * time.Hour)) {
		t.Errorf("the process goes on with the old one, until %v", src.Bundle().NotAfter)
	}
}

func TestRenewWaitsForAnotherProcess(t *testing.T) {
	t.Parallel()
	s := newSigner(t)
	dir := t.TempDir()
	if _, err := Obtain(t.Context(), dir, s.sign); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	src, err := OpenSource(dir, clockAt(testNow))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	if err := src.Renew(ctx, s.sign); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	unlock()
	if err := src.Renew(t.Context(), s.sign); err != nil {
		t.Error(err)
	}
}

func TestWhenToRenew(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	day := 24 * time.Hour
	for _, c := range []struct {
		role      Role
		ttl, left time.Duration
	}{
		{RoleNode, day, (day + Skew) / 3},
		{RoleClient, time.Hour, (time.Hour + Skew) / 3},
		// A bundle of `trivet ca init` is not given up for a shorter one.
		{RoleClient, 90 * day, (12*time.Hour + Skew) / 3},
		{RoleServer, 90 * day, (7*day + Skew) / 3},
	} {
		b := issue(t, ca, c.role, "x", c.ttl)
		if left := b.NotAfter.Sub(b.RenewAt()); left != c.left {
			t.Errorf("%s for %s: %s left, want %s", c.role, c.ttl, left, c.left)
		}
	}
}

func TestOpenKeyFilesAreRemarkedOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := issue(t, newTestCA(t, "prod"), RoleNode, "n1", time.Hour).Write(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	b, err := LoadBundle(filepath.Join(dir, "b"))
	if err != nil || b.Warning() != "" {
		t.Errorf("%q, %v", b.Warning(), err)
	}
	path := filepath.Join(dir, "b", KeyFile)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	b, err = LoadBundle(filepath.Join(dir, "b"))
	want := path + " has mode 0644: others may read the private key in it; run: chmod 600 " + path
	if err != nil || b.Warning() != want {
		t.Errorf("%q, %v", b.Warning(), err)
	}
}
