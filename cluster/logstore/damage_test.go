package logstore

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"trivet/internal/errs"
)

// written writes a log and returns the bytes of its file.
func written(t testing.TB, n uint64) []byte {
	t.Helper()
	dir := t.TempDir()
	s := open(t, dir, nil)
	for i := uint64(1); i <= n; i += 10 {
		store(t, s, i, min(i+9, n))
	}
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 77), s.Set([]byte("LastVoteCand"), []byte("candidate")), s.Close()); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, boltFile))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// refusedOrSame opens a damaged file. It must be refused as damaged, or hold
// exactly what was written. It says which.
func refusedOrSame(t *testing.T, dir string, raw []byte, n uint64, what string) (refused bool) {
	t.Helper()
	// A file that is written over would be synced by some file systems.
	path := filepath.Join(dir, boltFile)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := tryOpen(dir, func(c *Config) { c.NoSync = true })
	if err != nil {
		if e := errs.From(err); !errors.Is(err, ErrCorrupt) || e.Reason != ReasonCorrupt || !strings.Contains(e.Hint, "as a new one") ||
			!strings.Contains(e.Message, boltFile) {
			t.Fatalf("%s: refused with %q, hint %q", what, e.Message, e.Hint)
		}
		return true
	}
	defer s.Close()
	holds(t, s, 1, n)
	term, err := s.GetUint64([]byte("CurrentTerm"))
	vote, err2 := s.Get([]byte("LastVoteCand"))
	if term != 77 || string(vote) != "candidate" || err != nil || err2 != nil {
		t.Fatalf("%s: term %d, vote %q, %v, %v", what, term, vote, err, err2)
	}
	return false
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	const n = 60
	whole := written(t, n)
	dir := t.TempDir()
	if refusedOrSame(t, dir, whole, n, "nothing") {
		t.Fatal("the whole file is refused")
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	const flips = 400
	refused := 0
	for range flips {
		at, bit := rnd.IntN(len(whole)), rnd.IntN(8)
		broken := bytes.Clone(whole)
		broken[at] ^= 1 << bit
		if refusedOrSame(t, dir, broken, n, "a bit") {
			refused++
		}
	}
	t.Logf("%d of %d flipped bits were refused; the others are in free pages and gaps", refused, flips)
	if refused < flips/20 {
		t.Errorf("only %d were", refused)
	}
	// Every byte of an entry, wherever it is stored.
	refused = 0
	needle := entry(33).Data
	for from := 0; ; {
		i := bytes.Index(whole[from:], needle)
		if i < 0 {
			break
		}
		from += i
		broken := bytes.Clone(whole)
		broken[from+3] ^= 4
		if refusedOrSame(t, dir, broken, n, "entry 33") {
			refused++
		}
		from++
	}
	if refused == 0 {
		t.Error("a changed entry was read")
	}
}

func TestDamagedPagesAreRefusedWithoutACrash(t *testing.T) {
	const n = 400
	whole := written(t, n)
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(3, 4))
	const page = 4096
	for range 60 {
		broken := bytes.Clone(whole)
		for range 1 + rnd.IntN(4) {
			at := page * rnd.IntN(len(whole)/page)
			for i := at; i < at+page; i++ {
				broken[i] = byte(rnd.Uint32())
			}
		}
		refusedOrSame(t, dir, broken, n, "pages of noise")
	}
	// Pages that were swapped, or hold an older state.
	for range 60 {
		broken := bytes.Clone(whole)
		a, b := page*rnd.IntN(len(whole)/page), page*rnd.IntN(len(whole)/page)
		copy(broken[a:a+page], whole[b:b+page])
		refusedOrSame(t, dir, broken, n, "a page in the wrong place")
	}
	for range 60 {
		refusedOrSame(t, dir, whole[:rnd.IntN(len(whole))], n, "a file that was cut off")
	}
	if !refusedOrSame(t, dir, nil, n, "an empty file") {
		t.Error("an empty file was opened")
	}
}

// TestDamageMetWhileOpen: what was whole when it was opened and is not any
// more.
func TestDamageMetWhileOpen(t *testing.T) {
	for name, harm := range map[string]func(path string, raw []byte) error{
		"entry": func(path string, raw []byte) error {
			return os.WriteFile(path, bytes.ReplaceAll(raw, entry(3).Data, []byte("the data of entry X")), 0o600)
		},
		"cut off": func(path string, _ []byte) error { return os.Truncate(path, 4096) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, func(c *Config) { c.CacheEntries = 1 })
			store(t, s, 1, 20)
			path := filepath.Join(dir, boltFile)
			raw, err := os.ReadFile(path)
			if err == nil {
				err = harm(path, raw)
			}
			if err != nil {
				t.Fatal(err)
			}
			var l raft.Log
			if err := s.GetLog(3, &l); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "log entry 3 in "+path) {
				t.Errorf("read: %v", err)
			}
			if err := s.StoreLogs(entries(21, 21)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("a write after that: %v", err)
			}
			if ok, why := s.Healthy(); ok || !strings.Contains(why, "entry 3") {
				t.Errorf("healthy %v, %q", ok, why)
			}
		})
	}
}
