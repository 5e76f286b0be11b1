package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"trivet/internal/errs"
)

// snapshotOf makes the content of the snapshot at index.
func snapshotOf(index uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "state at %d. ", index), 2000)
}

func takeSnapshot(s *Snapshots, index uint64, content []byte) error {
	sink, err := s.Create(1, index, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		return err
	}
	if _, err := sink.Write(content); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

// newest reads the newest snapshot and returns its index, 0 when there is none.
func newest(t *testing.T, s *Snapshots) uint64 {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		return 0
	}
	_, r, err := s.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, snapshotOf(list[0].Index)) {
		t.Fatalf("the snapshot at %d has %d bytes of something else (%v)", list[0].Index, len(got), err)
	}
	return list[0].Index
}

func openSnapshots(t *testing.T, dir string) *Snapshots {
	t.Helper()
	s, err := OpenSnapshots(dir, 2, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(filepath.Join(dir, snapshotDir))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func TestSnapshotsAreKeptAndChecked(t *testing.T) {
	dir := t.TempDir()
	s := openSnapshots(t, dir)
	for i := uint64(1); i <= 4; i++ {
		if err := takeSnapshot(s, i, snapshotOf(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems %+v", p)
	}
	if n := names(t, dir); len(n) != 2 {
		t.Errorf("there are %v", n)
	}
	if i := newest(t, openSnapshots(t, dir)); i != 4 {
		t.Errorf("the newest is at %d", i)
	}
}

// TestEveryStepOfASnapshotOpens makes by hand what a killed process can leave.
func TestEveryStepOfASnapshotOpens(t *testing.T) {
	write := func(path string, n int) error {
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, n), 0o600))
	}
	for name, leave := range map[string]func(dir string) error{
		"directory":       func(d string) error { return os.Mkdir(filepath.Join(d, "1-9-1.tmp"), 0o700) },
		"empty meta":      func(d string) error { return write(filepath.Join(d, "1-9-1.tmp", snapshotMeta), 0) },
		"half a state":    func(d string) error { return write(filepath.Join(d, "1-9-1.tmp", snapshotState), 7) },
		"permission test": func(d string) error { return write(filepath.Join(d, "permTest"), 0) },
		"old one without meta": func(d string) error {
			return write(filepath.Join(d, "1-1-1", snapshotState), 7)
		},
		"old one without state": func(d string) error { return write(filepath.Join(d, "1-1-1", snapshotMeta), 7) },
		"old one, empty":        func(d string) error { return os.Mkdir(filepath.Join(d, "1-1-1"), 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openSnapshots(t, dir)
			if err := takeSnapshot(s, 5, snapshotOf(5)); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Close(), leave(filepath.Join(dir, snapshotDir))); err != nil {
				t.Fatal(err)
			}
			s = openSnapshots(t, dir)
			if i := newest(t, s); i != 5 {
				t.Errorf("the newest is at %d", i)
			}
			if n := names(t, dir); len(n) != 1 {
				t.Errorf("left: %v", n)
			}
			if err := takeSnapshot(s, 9, snapshotOf(9)); err != nil || newest(t, s) != 9 {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}

func TestDamagedNewestSnapshotIsRefused(t *testing.T) {
	for name, harm := range map[string]func(dir string) error{
		"state flipped": func(d string) error {
			path := filepath.Join(d, snapshotState)
			raw, err := os.ReadFile(path)
			if err == nil {
				raw[100] ^= 1
				err = os.WriteFile(path, raw, 0o600)
			}
			return err
		},
		"state cut": func(d string) error { return os.Truncate(filepath.Join(d, snapshotState), 100) },
		"meta cut":  func(d string) error { return os.Truncate(filepath.Join(d, snapshotMeta), 10) },
		"no state":  func(d string) error { return os.Remove(filepath.Join(d, snapshotState)) },
		"no meta":   func(d string) error { return os.Remove(filepath.Join(d, snapshotMeta)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openSnapshots(t, dir)
			for i := uint64(1); i <= 2; i++ {
				if err := takeSnapshot(s, i, snapshotOf(i)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			ids, err := s.ids()
			if err != nil || len(ids) != 2 {
				t.Fatal(ids, err)
			}
			if err := harm(filepath.Join(dir, snapshotDir, ids[0])); err != nil {
				t.Fatal(err)
			}
			_, err = OpenSnapshots(dir, 2, nil)
			if e := errs.From(err); !errors.Is(err, ErrCorrupt) || e.Reason != ReasonSnapshotCorrupt || !strings.Contains(e.Message, ids[0]) || e.Hint == "" {
				t.Errorf("opened: %v", err)
			}
			// A leader that needs it is told, and one that was written since helps.
			if _, _, err := s.Open(ids[0]); err == nil {
				t.Error("it was opened")
			}
			if p := s.Problems(); len(p) != 1 || p[0].Reason != ReasonSnapshotCorrupt {
				t.Errorf("problems %+v", p)
			}
		})
	}
}

func TestTwoSnapshotsAtOnceLeaveEachOtherAlone(t *testing.T) {
	dir := t.TempDir()
	s := openSnapshots(t, dir)
	a, err := s.Create(1, 7, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Create(1, 8, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Cancel(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Write(snapshotOf(7)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if i := newest(t, s); i != 7 || len(names(t, dir)) != 1 {
		t.Errorf("the newest is at %d of %v", i, names(t, dir))
	}
}

// tinyDisk mounts a file system of a few blocks.
func tinyDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
			t.Skipf("mounting a small file system is not allowed here: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Raft's sink that failed leaves a file open.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestSnapshotOnAFullDiskLeavesNothing(t *testing.T) {
	dir := tinyDisk(t, "256k")
	s := openSnapshots(t, dir)
	if err := takeSnapshot(s, 1, snapshotOf(1)); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		err := takeSnapshot(s, 2, make([]byte, 1<<20))
		if !isFull(err) {
			t.Fatalf("a snapshot of 1 MiB: %v", err)
		}
	}
	if p := s.Problems(); len(p) != 1 || p[0].Reason != ReasonDiskFull {
		t.Errorf("problems %+v", p)
	}
	if n := names(t, dir); len(n) != 1 {
		t.Errorf("left: %v", n)
	}
	if err := takeSnapshot(s, 3, snapshotOf(3)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if p := s.Problems(); len(p) > 0 {
		t.Errorf("problems %+v after one that was whole", p)
	}
}

func TestLogOnAFullDiskRecovers(t *testing.T) {
	dir := tinyDisk(t, "512k")
	s := open(t, dir, nil)
	data := make([]byte, 4096)
	var last uint64
	add := func() error {
		err := s.StoreLog(&raft.Log{Index: last + 1, Term: 1, Data: data})
		if err == nil {
			last++
		}
		return err
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		err := add()
		if isFull(err) {
			break
		}
		if err != nil || i > 1000 {
			t.Fatalf("entry %d: %v", last+1, err)
		}
	}
	if ok, why := s.Healthy(); ok || !strings.Contains(why, "no space left") {
		t.Errorf("healthy %v, %q", ok, why)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=4m"); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if err := add(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir, nil)
	if got, err := again.LastIndex(); err != nil || got != last {
		t.Errorf("last entry %d, %v; want %d", got, err, last)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
