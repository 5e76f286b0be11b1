package seal

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trivet/internal/errs"
)

func ring(t *testing.T) *Keyring {
	t.Helper()
	r, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestSealedBytesOpenWhereTheyBelong(t *testing.T) {
	t.Parallel()
	r := ring(t)
	for _, text := range []string{"", "x", strings.Repeat("secret ", 1000)} {
		sealed := r.Seal("intercept/1", []byte(text))
		if len(sealed) != len(text)+Overhead {
			t.Errorf("%d bytes became %d, want %d more", len(text), len(sealed), Overhead)
		}
		if len(text) > 3 && bytes.Contains(sealed, []byte(text[:6])) {
			t.Error("the plaintext shows")
		}
		got, err := r.Open("intercept/1", sealed)
		if err != nil || string(got) != text {
			t.Errorf("got %q, %v", got, err)
		}
		if _, err := r.Open("intercept/2", sealed); errs.Reason(err) != ReasonDamaged {
			t.Errorf("in another place: %v, want %s", err, ReasonDamaged)
		}
	}
}

func TestSealingIsDeterministic(t *testing.T) {
	t.Parallel()
	r := ring(t)
	again, err := Decode(r.Encode())
	if err != nil {
		t.Fatal(err)
	}
	a, b := r.Seal("c", []byte("text")), again.Seal("c", []byte("text"))
	if !bytes.Equal(a, b) {
		t.Error("equal input gave different bytes")
	}
	// Length and boundary of the context count.
	seen := map[string]string{}
	for _, in := range [][2]string{{"c", "text"}, {"ct", "ext"}, {"", "ctext"}, {"d", "text"}, {"c", "texu"}} {
		out := string(r.Seal(in[0], []byte(in[1]))[:headerLen])
		if other, ok := seen[out]; ok {
			t.Errorf("%q and %q share a nonce", in, other)
		}
		seen[out] = in[0] + "|" + in[1]
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	r := ring(t)
	sealed := r.Seal("c", []byte("text"))
	for i := range sealed {
		for bit := range 8 {
			bad := bytes.Clone(sealed)
			bad[i] ^= 1 << bit
			if _, err := r.Open("c", bad); err == nil {
				t.Fatalf("byte %d bit %d", i, bit)
			}
		}
	}
	for n := range sealed {
		if _, err := r.Open("c", sealed[:n]); err == nil {
			t.Fatalf("cut to %d bytes", n)
		}
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	old := ring(t)
	before := old.Seal("c", []byte("text"))
	secret, err := NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	next, err := old.With(secret)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := next.Open("c", before); err != nil || string(got) != "text" {
		t.Errorf("the old key is gone: %q, %v", got, err)
	}
	after := next.Seal("c", []byte("text"))
	if id, err := KeyID(after); err != nil || id != next.Active() || id == old.Active() {
		t.Errorf("sealed with %s, %v; the newest is %s", id, err, next.Active())
	}
	if _, err := old.Open("c", after); errs.Reason(err) != ReasonUnknownKey || errs.From(err).Hint == "" {
		t.Errorf("a server without the key: %v, want %s with a hint", err, ReasonUnknownKey)
	}
	if !bytes.Equal(old.Digest([]byte("x")), next.Digest([]byte("x"))) {
		t.Error("the digest changed with the key")
	}
	back, err := next.Use(old.Active())
	if err != nil || back.Active() != old.Active() || len(back.IDs()) != 2 {
		t.Errorf("%v, %v", back, err)
	}
	if _, err := next.Use("0123456789abcdef"); errs.Reason(err) != ReasonUnknownKey {
		t.Errorf("got %v", err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	r := ring(t)
	for range 2 { // the second time over the first
		if err := r.Save(dir); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(dir, FileName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	got, err := Load(dir)
	if err != nil || got.Active() != r.Active() {
		t.Errorf("got %v, %v", got, err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestDamagedKeyrings(t *testing.T) {
	t.Parallel()
	good := ring(t)
	other := ring(t)
	for name, text := range map[string]string{
		"empty":     "",
		"comments":  "# nothing\n\n",
		"not a key": "abc def\n",
		"short":     good.Active() + " AAAA\n",
		"wrong id":  strings.Replace(string(good.Encode()), good.Active(), other.Active(), 1),
	} {
		_, err := Decode([]byte(text))
		if errs.Reason(err) != ReasonBadKeyring {
			t.Errorf("%s: %v, want %s", name, err, ReasonBadKeyring)
		}
	}
}

func FuzzOpen(f *testing.F) {
	r, err := New()
	if err != nil {
		f.Fatal(err)
	}
	f.Add("c", []byte("text"))
	f.Add("", []byte{})
	f.Fuzz(func(t *testing.T, context string, data []byte) {
		if _, err := r.Open(context, data); err == nil {
			t.Error("bytes that nobody sealed were opened")
		}
		got, err := r.Open(context, r.Seal(context, data))
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("got %x, %v", got, err)
		}
	})
}
