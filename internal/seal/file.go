package seal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// FileName is what the keyring's file is called, in a bundle, in a CA's
// directory and in a server's data directory alike.
const FileName = "keyring"

// maxFile bounds what is read of a keyring's file.
const maxFile = 64 << 10

// Load reads the keyring in dir. One that is not there is an error with
// fs.ErrNotExist.
func Load(dir string) (*Keyring, error) {
	path := filepath.Join(dir, FileName)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(codes.NotFound, ReasonBadKeyring, "no keyring in %s: %w", dir, fs.ErrNotExist).
			WithHint("trivet ca init writes one into every server's bundle; run it again with the same --dir to add it")
	}
	if err != nil {
		return nil, fmt.Errorf("look for the keyring: %w", err)
	}
	if info.Size() > maxFile {
		return nil, badKeyring("%s has %d bytes", path, info.Size())
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the keyring: %w", err)
	}
	r, err := Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Save writes the keyring to dir with mode 0600, as a whole or not at all.
func (r *Keyring) Save(dir string) (err error) {
	path := filepath.Join(dir, FileName)
	tmp, err := os.CreateTemp(dir, "."+FileName+".tmp-*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(tmp.Name())))
		}
	}()
	_, err = tmp.Write(r.Encode())
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
