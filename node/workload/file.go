package workload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
)

// pollEvery is how often the file's time of change is looked at.
const pollEvery = time.Second

// maxFileBytes bounds a workload file: a mistaken path to something huge must
// not fill memory.
const maxFileBytes = 16 << 20

// Source tells what runs on the node.
type Source interface {
	// Get returns the present set, and a channel that is closed once there is
	// another.
	Get() (*Set, <-chan struct{})
}

// File is a Source that reads a file.
type File struct {
	path, node string
	logger     *slog.Logger
	reload     chan struct{}
	refused    atomic.Uint64

	mu      sync.Mutex
	set     *Set          // guarded by mu
	changed chan struct{} // guarded by mu; closed when set is replaced
	stamp   stamp         // guarded by mu; of the content last looked at
}

// stamp is what shows that a file has changed.
type stamp struct {
	mod  time.Time
	size int64
	ino  any
}

// Open reads the file at path for the node called node. The error names every
// problem in it.
func Open(path, node string, logger *slog.Logger) (*File, error) {
	f := &File{
		path: path, node: node, logger: logger,
		reload: make(chan struct{}, 1), changed: make(chan struct{}),
	}
	st, err := stampOf(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	set, err := f.read()
	if err != nil {
		return nil, err
	}
	f.set, f.stamp = set, st
	return f, nil
}

// Get implements Source.
func (f *File) Get() (*Set, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set, f.changed
}

// Reload makes Run read the file again, changed or not. It does not wait.
func (f *File) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // one is due already
	}
}

// Refused counts the times that a changed file was wrong and the old content
// stayed.
func (f *File) Refused() uint64 { return f.refused.Load() }

// Run follows the file until ctx ends.
func (f *File) Run(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.reload:
			f.update(true)
		case <-tick.C:
			f.update(false)
		}
	}
}

// update reads the file if it has changed or if it is told to.
func (f *File) update(always bool) {
	f.mu.Lock()
	last := f.stamp
	f.mu.Unlock()
	st, err := stampOf(f.path)
	if st == last && !always {
		return // unchanged, or still gone and said so before
	}
	var set *Set
	if err == nil {
		set, err = f.read()
	} else {
		err = fileError(f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stamp = st
	if err != nil {
		f.refused.Add(1)
		f.logger.Error("workload file is refused, the last good content stays", "file", f.path, "err", err)
		return
	}
	f.set = set
	close(f.changed)
	f.changed = make(chan struct{})
	f.logger.Info("workload file was read", "file", f.path, "workloads", len(set.Workloads))
}

func (f *File) read() (*Set, error) {
	st, err := os.Stat(f.path)
	if err == nil && st.Size() > maxFileBytes {
		return nil, errs.New(codes.InvalidArgument, config.ReasonInvalid,
			"%s is larger than %d MiB and cannot be a workload file", f.path, maxFileBytes>>20)
	}
	data, err := os.ReadFile(f.path)
	if err != nil {
		return nil, fileError(f.path, err)
	}
	return Parse(f.path, f.node, data)
}

func stampOf(path string) (stamp, error) {
	st, err := os.Stat(path)
	if err != nil {
		return stamp{}, err
	}
	return stamp{mod: st.ModTime(), size: st.Size(), ino: inode(st)}, nil
}

func fileError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return errs.New(codes.NotFound, config.ReasonMissing, "workload file %s does not exist", path).
			WithHint("make it, or name another one as workloadsFile in the node's configuration")
	}
	return errs.New(codes.FailedPrecondition, config.ReasonUnreadable, "%w", fmt.Errorf("read workload file: %w", err))
}
