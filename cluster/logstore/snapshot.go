package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Names in the directory of a raft.FileSnapshotStore.
const (
	snapshotDir   = "snapshots"
	snapshotMeta  = "meta.json"
	snapshotState = "state.bin"
	snapshotTemp  = ".tmp"
)

// Snapshots is a raft.FileSnapshotStore that cleans up after itself and knows
// whether its newest snapshot can be read. Make it with OpenSnapshots, end it
// with Close.
type Snapshots struct {
	store *raft.FileSnapshotStore
	dir   string
	log   hclog.Logger

	// writing holds the ids of snapshots that are being written: one that Raft
	// takes and one that the leader sends can meet. filesMu guards it and is held
	// while directories come and go.
	filesMu sync.Mutex
	writing map[string]bool

	mu sync.Mutex
	// latest is the error of the newest snapshot, taken or read; guarded by mu.
	latest error
	closed bool // guarded by mu
	wg     sync.WaitGroup
}

var _ raft.SnapshotStore = (*Snapshots)(nil)

// OpenSnapshots opens the snapshots below dir, of which the newest keep are
// kept. What a process that was killed left behind is removed. When the newest
// snapshot is damaged the directory is refused: the one before it may be older
// than the oldest entry of the log.
func OpenSnapshots(dir string, keep int, logger hclog.Logger) (*Snapshots, error) {
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	s := &Snapshots{dir: filepath.Join(dir, snapshotDir), log: logger, writing: make(map[string]bool)}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of snapshots: %w", err)
	}
	if err := s.tidy(); err != nil {
		return nil, fmt.Errorf("tidy the snapshots in %s: %w", s.dir, err)
	}
	var err error
	if s.store, err = raft.NewFileSnapshotStoreWithLogger(dir, keep, logger); err != nil {
		return nil, fmt.Errorf("open the snapshots in %s: %w", s.dir, err)
	}
	ids, err := s.ids()
	if err != nil {
		return nil, err
	}
	if len(ids) > 0 {
		if err := s.check(ids[0]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// snapshotOrder reads term, index and time out of a snapshot's id.
func snapshotOrder(id string) (order [3]uint64, ok bool) {
	parts := strings.Split(id, "-")
	if len(parts) != len(order) {
		return order, false
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 64)
		if err != nil {
			return order, false
		}
		order[i] = n
	}
	return order, true
}

// ids are the snapshots that have their final name, the newest first.
func (s *Snapshots) ids() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	var out []string
	for _, e := range entries {
		if _, ok := snapshotOrder(e.Name()); ok && e.IsDir() {
			out = append(out, e.Name())
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		x, _ := snapshotOrder(a)
		y, _ := snapshotOrder(b)
		return -slices.Compare(x[:], y[:])
	})
	return out, nil
}

// tidy removes snapshots that were not finished, and old ones that were not
// removed whole. Raft would keep both for ever. The caller holds filesMu, or is
// alone.
func (s *Snapshots) tidy() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if id, temp := strings.CutSuffix(e.Name(), snapshotTemp); temp && e.IsDir() {
			if _, ok := snapshotOrder(id); ok && !s.writing[id] {
				s.log.Info("removing an unfinished snapshot", "name", e.Name())
				path := filepath.Join(s.dir, e.Name())
				// Raft's sink that failed leaves the file open, so that removing it alone
				// would give no room back.
				_ = os.Truncate(filepath.Join(path, snapshotState), 0)
				if err := os.RemoveAll(path); err != nil {
					return err
				}
			}
		}
	}
	ids, err := s.ids()
	if err != nil || len(ids) == 0 {
		return err
	}
	for _, id := range ids[1:] {
		path := filepath.Join(s.dir, id)
		_, errMeta := os.Stat(filepath.Join(path, snapshotMeta))
		_, errState := os.Stat(filepath.Join(path, snapshotState))
		if errors.Is(cmp.Or(errMeta, errState), os.ErrNotExist) {
			s.log.Info("removing what is left of an old snapshot", "name", id)
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// check reads a snapshot to its end and compares its checksum.
func (s *Snapshots) check(id string) error {
	_, r, err := s.store.Open(id)
	if err != nil {
		return errs.New(codes.DataLoss, ReasonSnapshotCorrupt, "the newest snapshot %s is damaged: %w",
			filepath.Join(s.dir, id), corruption{err}).WithHint("%s", rejoin)
	}
	return r.Close()
}

// Create implements raft.SnapshotStore.
func (s *Snapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configIndex uint64, t raft.Transport) (raft.SnapshotSink, error) {
	s.filesMu.Lock()
	defer s.filesMu.Unlock()
	sink, err := s.store.Create(version, index, term, c, configIndex, t)
	if err != nil {
		// What it began to write takes room that is wanted now.
		err = errors.Join(fmt.Errorf("begin a snapshot in %s: %w", s.dir, err), s.tidy())
		s.note(err)
		return nil, err
	}
	s.writing[sink.ID()] = true
	return &snapshotSink{SnapshotSink: sink, s: s}, nil
}

// List implements raft.SnapshotStore.
func (s *Snapshots) List() ([]*raft.SnapshotMeta, error) { return s.store.List() }

// Open implements raft.SnapshotStore.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, r, err := s.store.Open(id)
	if err != nil {
		err = fmt.Errorf("open snapshot %s in %s: %w", id, s.dir, err)
		if ids, errList := s.ids(); errList != nil || len(ids) == 0 || ids[0] == id {
			s.note(corruption{err})
		}
	}
	return meta, r, err
}

func (s *Snapshots) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = err
}

// look reads a snapshot that was just written, beside everything else: on a
// follower Raft's loop waits for the end of Close.
func (s *Snapshots) look(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.wg.Go(func() {
		err := s.check(id)
		// A newer one may have pushed it out meanwhile.
		if errors.Is(err, os.ErrNotExist) {
			return
		}
		s.note(err)
	})
}

// Problems says whether the newest snapshot could not be written or read. A
// leader with one cannot help a follower that needs it.
func (s *Snapshots) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch err := s.latest; {
	case err == nil:
		return nil
	case errors.Is(err, ErrCorrupt):
		return []Problem{{Reason: ReasonSnapshotCorrupt, Message: err.Error(), Hint: "look for errors of the disk in the kernel's log; the next snapshot replaces this one, if it is newer and can be read"}}
	case isFull(err):
		return []Problem{{Reason: ReasonDiskFull, Message: err.Error(), Hint: "make room on the file system of " + s.dir}}
	default:
		return []Problem{{Reason: ReasonWriteFailed, Message: err.Error(), Hint: "look for errors of the disk in the kernel's log"}}
	}
}

// Close waits until no snapshot is being looked at. Snapshots stay readable.
func (s *Snapshots) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// snapshotSink cleans up after a snapshot that came to nothing.
type snapshotSink struct {
	raft.SnapshotSink
	s *Snapshots
	// err is the first error of a write.
	err error
}

// Write implements io.Writer.
func (k *snapshotSink) Write(p []byte) (int, error) {
	n, err := k.SnapshotSink.Write(p)
	k.err = cmp.Or(k.err, err)
	return n, err
}

// Close ends a snapshot that is whole.
func (k *snapshotSink) Close() error {
	err := k.SnapshotSink.Close()
	tidied := k.s.written(k.ID())
	if err != nil {
		err = errors.Join(fmt.Errorf("finish snapshot %s in %s: %w", k.ID(), k.s.dir, err), tidied)
		k.s.note(err)
		return err
	}
	k.s.look(k.ID())
	return nil
}

// Cancel ends a snapshot that is not whole.
func (k *snapshotSink) Cancel() error {
	if k.err != nil {
		k.s.note(fmt.Errorf("write snapshot %s in %s: %w", k.ID(), k.s.dir, k.err))
	}
	// Raft's own does not remove what it cannot finish, which is removed here.
	_ = k.SnapshotSink.Cancel()
	return k.s.written(k.ID())
}

// written notes that a snapshot is not being written any more, and tidies.
func (s *Snapshots) written(id string) error {
	s.filesMu.Lock()
	defer s.filesMu.Unlock()
	delete(s.writing, id)
	return s.tidy()
}
