package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/uuid"
	"github.com/hashicorp/raft"
)

const (
	// idFile holds the server's UUID, in the data directory. As long as the
	// server has never had Raft state the word unborn follows it.
	idFile = "server-id"
	unborn = "new"
	// clusterFile holds the name of the cluster that the directory belongs to.
	clusterFile = "cluster-name"
)

// identity is what the data directory says of its server.
type identity struct {
	id string
	// made: it was made now and is not written yet.
	made bool
	// unborn: it has never had Raft state, so it can have forgotten nothing.
	unborn bool
}

// loadID reads the server's id or makes one.
func loadID(dir string) (identity, error) {
	raw, err := os.ReadFile(filepath.Join(dir, idFile))
	if errors.Is(err, os.ErrNotExist) {
		return identity{id: uuid.NewString(), made: true, unborn: true}, nil
	}
	if err != nil {
		return identity{}, fmt.Errorf("read server id: %w", err)
	}
	words := strings.Fields(string(raw))
	if len(words) == 0 || len(words) > 2 || len(words) == 2 && words[1] != unborn {
		return identity{}, fmt.Errorf("%w: %s is damaged", ErrForeignData, filepath.Join(dir, idFile))
	}
	if _, err := uuid.Parse(words[0]); err != nil {
		return identity{}, fmt.Errorf("%w: %s is not a UUID: %w", ErrForeignData, filepath.Join(dir, idFile), err)
	}
	return identity{id: words[0], unborn: len(words) == 2}, nil
}

// saveID writes the id so that a power cut leaves either nothing or all of it,
// and the files of Raft beside it.
func saveID(dir string, i identity) error {
	line := i.id
	if i.unborn {
		line += " " + unborn
	}
	err := replaceFile(filepath.Join(dir, idFile), line+"\n")
	if err == nil {
		err = errors.Join(syncDir(filepath.Join(dir, raftDir)), syncDir(dir))
	}
	if err != nil {
		return fmt.Errorf("write server id: %w", err)
	}
	return nil
}

// checkCluster compares the name in the data directory with the one that the
// certificate names, and writes it when there is none.
func checkCluster(dir, name string) error {
	if name == "" {
		return nil
	}
	path := filepath.Join(dir, clusterFile)
	raw, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := errors.Join(replaceFile(path, name+"\n"), syncDir(dir)); err != nil {
			return fmt.Errorf("write the cluster's name: %w", err)
		}
		return nil
	case err != nil:
		return fmt.Errorf("read the cluster's name: %w", err)
	}
	if got := strings.TrimSpace(string(raw)); got != name {
		return fmt.Errorf("%w: %s holds data of cluster %q, the certificate is of cluster %q", ErrForeignData, dir, got, name)
	}
	return nil
}

func replaceFile(path, content string) error {
	if err := writeSynced(path+".tmp", content); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// birth is Raft's stable store, noting in the data directory that there is
// state before Raft can act on it: its current term is the first thing that it
// stores. A directory whose id says that it has state while it has none was
// wiped in part, and its server has forgotten votes.
type birth struct {
	raft.StableStore
	once sync.Once
	note func() error
}

// SetUint64 implements raft.StableStore.
func (b *birth) SetUint64(key []byte, v uint64) error {
	if err := b.StableStore.SetUint64(key, v); err != nil || v == 0 {
		return err // Raft begins by storing that its term is 0
	}
	return b.born()
}

// Set implements raft.StableStore.
func (b *birth) Set(key, v []byte) error {
	if err := b.StableStore.Set(key, v); err != nil {
		return err
	}
	return b.born()
}

func (b *birth) born() (err error) {
	b.once.Do(func() { err = b.note() })
	return err
}

func writeSynced(path, content string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
