package pki

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// maxFile bounds what is read of a certificate or key file; a chain of three
// P-256 certificates has about 3 KiB.
const maxFile = 64 << 10

type file struct {
	name string
	data []byte
}

// writeNew writes files (0600) into dir (made 0700 when it does not exist), and
// leaves nothing behind on an error. Existing files are never replaced: a lost
// key cannot be made again. Each file appears whole or not at all; the last
// one marks the set as complete.
func writeNew(dir, hint string, files []file) (err error) {
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		_, statErr := os.Lstat(path)
		if statErr == nil {
			return errs.New(codes.AlreadyExists, ReasonFilesExist, "%s exists already", path).WithHint("%s", hint)
		}
		if !errors.Is(statErr, fs.ErrNotExist) {
			return fmt.Errorf("look for %s: %w", path, statErr)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	var written []string
	defer func() {
		if err != nil {
			for _, path := range written {
				err = errors.Join(err, os.Remove(path))
			}
		}
	}()
	for _, f := range files {
		path := filepath.Join(dir, f.name)
		if err := writeFile(path, f.data); err != nil {
			return err
		}
		written = append(written, path)
	}
	return syncDir(dir)
}

// writeFile makes path with data, through a temporary file beside it.
func writeFile(path string, data []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*") // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(tmp.Name()))
		}
	}()
	if _, err := tmp.Write(data); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Sync(); err != nil {
		return errors.Join(err, tmp.Close())
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// readFile reads a small file; hint says what to do when it is not there.
func readFile(dir, name, hint string) ([]byte, error) {
	path := filepath.Join(dir, name)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.New(codes.NotFound, ReasonFilesMissing, "read %s: %w", path, err).WithHint("%s", hint)
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	if len(data) > maxFile {
		return nil, errs.New(codes.FailedPrecondition, ReasonInvalid,
			"%s is larger than %d bytes", path, maxFile).WithHint("this is no PEM file of trivet's")
	}
	return data, nil
}
