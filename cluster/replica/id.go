package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
)

// idFile holds the server's UUID, in the data directory.
const idFile = "server-id"

// loadID reads the server's id; fresh says that it was made now.
func loadID(dir string) (id string, fresh bool, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, idFile))
	if errors.Is(err, os.ErrNotExist) {
		return uuid.NewString(), true, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("read server id: %w", err)
	}
	id = strings.TrimSpace(string(raw))
	if _, err := uuid.Parse(id); err != nil {
		return "", false, fmt.Errorf("%w: %s is not a UUID: %w", ErrForeignData, filepath.Join(dir, idFile), err)
	}
	return id, false, nil
}

// saveID writes the id so that a power cut leaves either nothing or all of it,
// and the files of Raft beside it.
func saveID(dir, id string) error {
	path := filepath.Join(dir, idFile)
	err := writeSynced(path+".tmp", id+"\n")
	if err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err == nil {
		err = errors.Join(syncDir(filepath.Join(dir, raftDir)), syncDir(dir))
	}
	if err != nil {
		return fmt.Errorf("write server id: %w", err)
	}
	return nil
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
