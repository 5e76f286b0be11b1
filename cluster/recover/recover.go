package recover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"trivet/cluster/replica"
	"trivet/fsm"
)

// ErrInUse: a process has the directory open.
var ErrInUse = errors.New("the data directory is in use: stop the server first")

// Recover rewrites the configuration in a server's data directory to exactly
// these members (replica.Recover says what that loses) and returns where the
// directory's copy of before is.
func Recover(ctx context.Context, dir string, members []replica.Member, now time.Time) (backup string, err error) {
	dir = filepath.Clean(dir)
	backup = dir + ".backup-" + now.UTC().Format("20060102T150405Z")
	if err := duplicate(ctx, dir, backup); err != nil {
		return "", err
	}
	if err := replica.Recover(dir, members); err != nil {
		return backup, err
	}
	return backup, nil
}

// State returns the state of a stopped server at a point in its past. It needs
// room for a copy of the directory among the temporary files.
func State(ctx context.Context, dir string, at replica.At) (*fsm.Root, error) {
	tmp, err := os.MkdirTemp("", "trivet-state-")
	if err != nil {
		return nil, fmt.Errorf("make room for a copy: %w", err)
	}
	defer os.RemoveAll(tmp)
	work := filepath.Join(tmp, "data")
	if err := duplicate(ctx, filepath.Clean(dir), work); err != nil {
		return nil, err
	}
	return replica.Replay(work, at)
}

// duplicate copies a directory that nobody uses; to must not exist. On an error
// nothing is left of the copy.
func duplicate(ctx context.Context, from, to string) (err error) {
	if _, err := os.Stat(filepath.Join(from, "server-id")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s", replica.ErrNoState, from)
	}
	locks, err := lock(from)
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range locks {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := os.Mkdir(to, 0o700); err != nil {
		return fmt.Errorf("copy the data directory: %w", err)
	}
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == from {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.Mkdir(target, 0o700)
		case d.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil // sockets and the like hold no state
	})
	if err != nil {
		return errors.Join(fmt.Errorf("copy the data directory: %w", err), os.RemoveAll(to))
	}
	return nil
}

// lock takes a shared lock of every database in a directory, which a server
// that runs holds alone.
func lock(dir string) ([]*os.File, error) {
	var files []*os.File
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !strings.HasSuffix(path, ".db") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		files = append(files, f)
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrInUse, path, err)
		}
		return nil
	})
	if err != nil {
		for _, f := range files {
			f.Close()
		}
		return nil, err
	}
	return files, nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}
