package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// backend stores durably, without any of the cares of this package.
type backend interface {
	raft.LogStore
	// Get returns a stable value, nil when there is none.
	Get(key []byte) ([]byte, error)
	Set(key, val []byte) error
	Close() error
	// file is what to name in an error.
	file() string
	// size is how many bytes the log takes on disk.
	size() (int64, error)
}

// boltFile is the log in the directory of a replica's Raft state.
const boltFile = "log.db"

// Exists says whether dir holds a log.
func Exists(dir string) (bool, error) {
	_, err := os.Stat(filepath.Join(dir, boltFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look for a log in %s: %w", dir, err)
	}
	return err == nil, nil
}

// making is the suffix of what is not whole yet.
const making = ".new"

// place makes something under another name and renames it, so that a power cut
// leaves either nothing of it or all.
func place(path string, fill func(path string) error) error {
	next := path + making
	if err := os.RemoveAll(next); err != nil {
		return fmt.Errorf("remove a leftover: %w", err)
	}
	if err := fill(next); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
