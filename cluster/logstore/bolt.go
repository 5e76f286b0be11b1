package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// lockTimeout bounds the wait for a process that is just ending.
const lockTimeout = 2 * time.Second

type boltStore struct {
	*raftboltdb.BoltStore
	path string
}

// openBolt opens the log in dir. fresh: there is none, make one with that set.
func openBolt(dir string, noSync, fresh bool, set map[string][]byte) (backend, error) {
	path := filepath.Join(dir, boltFile)
	if fresh {
		err := place(path, func(path string) error {
			b, err := newBolt(path, noSync)
			for k, v := range set {
				if err == nil {
					err = b.Set([]byte(k), v)
				}
			}
			if b != nil {
				err = errors.Join(err, b.Close())
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("make the log %s: %w", path, err)
		}
	} else if err := checkBolt(path); err != nil {
		return nil, err
	}
	var b *raftboltdb.BoltStore
	err := guarded(func() (err error) {
		b, err = newBolt(path, noSync)
		return err
	})
	var p panicked
	switch {
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, inUse(path, err)
	case errors.As(err, &p):
		return nil, corrupt(path, "the log", err)
	case err != nil:
		return nil, fmt.Errorf("open the log %s: %w", path, err)
	}
	return &boltStore{BoltStore: b, path: path}, nil
}

func newBolt(path string, noSync bool) (*raftboltdb.BoltStore, error) {
	opts := *bbolt.DefaultOptions
	opts.Timeout = lockTimeout
	// The freelist is kept in memory only: written with every commit it grows
	// with what was compacted. Opening pays for that with a walk of the file.
	opts.FreelistType = bbolt.FreelistMapType
	opts.NoFreelistSync = true
	opts.NoGrowSync = noSync
	return raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &opts, NoSync: noSync, MsgpackUseNewTimeFormat: true})
}

func inUse(path string, err error) error {
	return errs.New(codes.FailedPrecondition, ReasonInUse, "open the log %s: another process has it open: %w", path, err).
		WithHint("stop the other server that uses this data directory first")
}

func (b *boltStore) Get(key []byte) ([]byte, error) {
	v, err := b.BoltStore.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, nil
	}
	return v, err
}

func (b *boltStore) file() string { return b.path }

func (b *boltStore) size() (int64, error) {
	st, err := os.Stat(b.path)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}
