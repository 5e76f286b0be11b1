package pki

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/errs"
)

func TestBundleSurvivesDisk(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	b := issue(t, ca, RoleNode, "n1", 24*time.Hour)
	dir := filepath.Join(t.TempDir(), "a", "b")
	if err := b.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := LoadBundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != b.ID || !got.NotAfter.Equal(b.NotAfter) || !bytes.Equal(got.ChainPEM(), b.ChainPEM()) {
		t.Errorf("loaded %v until %v, wrote %v until %v", got.ID, got.NotAfter, b.ID, b.NotAfter)
	}

	modes := map[string]fs.FileMode{}
	for _, name := range []string{".", RootFile, ChainFile, KeyFile} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		modes[name] = fi.Mode().Perm()
	}
	want := map[string]fs.FileMode{".": 0o700, RootFile: 0o600, ChainFile: 0o600, KeyFile: 0o600}
	if diff := cmp.Diff(want, modes); diff != "" {
		t.Errorf("modes (-want +got):\n%s", diff)
	}
	names, err := filepath.Glob(filepath.Join(dir, ".*"))
	if err != nil || len(names) > 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

func TestWriteRefusesToReplace(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	b := issue(t, ca, RoleNode, "n1", 0)
	for _, existing := range []string{RootFile, ChainFile, KeyFile} {
		dir := t.TempDir()
		path := filepath.Join(dir, existing)
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		err := b.Write(dir)
		if errs.Reason(err) != ReasonFilesExist || !strings.Contains(err.Error(), path) || errs.From(err).Hint == "" {
			t.Errorf("Write over %s: %v", existing, err)
		}
		entries, readErr := os.ReadDir(dir)
		data, err := os.ReadFile(path)
		if readErr != nil || err != nil || len(entries) != 1 || string(data) != "precious" {
			t.Errorf("after refusal: %v, %q, %v, %v", entries, data, readErr, err)
		}
	}
}

func TestWriteLeavesNothingWhenItFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A name with a directory that does not exist cannot be written.
	err := writeNew(dir, "", []file{{"a", []byte("1")}, {"missing/b", []byte("2")}})
	if err == nil {
		t.Fatal("writing into a missing directory worked")
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, readErr)
	}
}

func TestLoadBundleSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	good := issue(t, ca, RoleClient, "alice", 0)
	other := issue(t, ca, RoleClient, "bob", 0)
	ofForeign := issue(t, foreign, RoleClient, "alice", 0)
	set := func(name string, data []byte) func(map[string][]byte) {
		return func(files map[string][]byte) { files[name] = data }
	}
	for _, tc := range []struct {
		name   string
		change func(map[string][]byte)
		want   string
	}{
		{"key missing", func(f map[string][]byte) { delete(f, KeyFile) }, ReasonFilesMissing},
		{"root missing", func(f map[string][]byte) { delete(f, RootFile) }, ReasonFilesMissing},
		{"key of another", set(KeyFile, other.keyPEM), ReasonKeyMismatch},
		{"key is garbage", set(KeyFile, []byte("x")), ReasonInvalid},
		{"key is a certificate", set(KeyFile, good.rootPEM), ReasonInvalid},
		{"chain is a key", set(ChainFile, good.keyPEM), ReasonInvalid},
		{"chain is empty", set(ChainFile, nil), ReasonInvalid},
		{"chain is huge", set(ChainFile, make([]byte, maxFile+1)), ReasonInvalid},
		{"chain without issuing CA", set(ChainFile, encodeCerts(good.Leaf())), ReasonForeignCA},
		{"root of another CA", set(RootFile, ofForeign.rootPEM), ReasonForeignCA},
		{"no identity", func(f map[string][]byte) {
			b := forge(t, ca, ca, forged{})
			f[ChainFile], f[KeyFile] = b.ChainPEM(), b.keyPEM
		}, ReasonNoIdentity},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			files := map[string][]byte{RootFile: good.rootPEM, ChainFile: good.ChainPEM(), KeyFile: good.keyPEM}
			tc.change(files)
			for name, data := range files {
				if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := LoadBundle(dir)
			if errs.Reason(err) != tc.want {
				t.Fatalf("LoadBundle: %v (%s), want %s", err, errs.Reason(err), tc.want)
			}
			if errs.From(err).Hint == "" {
				t.Errorf("no hint with %v", err)
			}
		})
	}
}

func TestExpiredBundleLoadsAndTells(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	dir := t.TempDir()
	if err := issue(t, ca, RoleServer, "s1", time.Hour).Write(dir); err != nil {
		t.Fatal(err)
	}
	b, err := LoadBundle(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := testNow.Add(time.Hour); !b.NotAfter.Equal(want) {
		t.Errorf("NotAfter = %v, want %v", b.NotAfter, want)
	}
	if left := b.NotAfter.Sub(b.RenewAt()); left != (time.Hour+Skew)/3 {
		t.Errorf("%v left at RenewAt, want a third", left)
	}
	for at, want := range map[time.Duration]string{
		0: "", time.Hour: "", time.Hour + time.Second: ReasonExpired, -2 * Skew: ReasonNotYetValid, -Skew: "",
	} {
		err := b.ValidAt(testNow.Add(at))
		if errs.Reason(err) != want {
			t.Errorf("at %v: %v, want %q", at, err, want)
		}
		if want == ReasonExpired && !strings.Contains(errs.From(err).Hint, dir) {
			t.Errorf("hint %q does not name %s", errs.From(err).Hint, dir)
		}
	}
}

func TestBundleEndsWithItsIssuingCA(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	b := forge(t, ca, ca, forged{uris: []string{"spiffe://prod/node/n"}, notAfter: testNow.Add(2 * IssuingTTL)})
	got, err := ParseBundle(b.rootPEM, b.ChainPEM(), b.keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if !got.NotAfter.Equal(ca.NotAfter()) {
		t.Errorf("NotAfter = %v, want %v", got.NotAfter, ca.NotAfter())
	}
	if err := got.ValidAt(ca.NotAfter().Add(time.Second)); errs.Reason(err) != ReasonExpired {
		t.Errorf("after the issuing CA: %v, want %s", err, ReasonExpired)
	}
}
