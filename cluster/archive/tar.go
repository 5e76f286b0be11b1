package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

const (
	block     = 512
	sizeField = 124
	sizeBytes = 12
	// ending is the length of the zeros at the end of a tar.
	ending = 2 * block
)

// header is the one way in which a file's header is written. That of an
// archive that is read must be the same to the byte.
func header(name string, size int64) ([]byte, error) {
	var buf bytes.Buffer
	err := tar.NewWriter(&buf).WriteHeader(&tar.Header{
		Format: tar.FormatUSTAR, Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: time.Unix(0, 0),
	})
	if err != nil {
		return nil, fmt.Errorf("make the header of %s: %w", name, err)
	}
	return buf.Bytes(), nil
}

func padding(size int64) int64 { return (block - size%block) % block }

// tarWriter writes after an error nothing more.
type tarWriter struct {
	w   io.Writer
	err error
}

// Write implements io.Writer.
func (t *tarWriter) Write(p []byte) (int, error) {
	if t.err != nil {
		return 0, t.err
	}
	n, err := t.w.Write(p)
	t.err = err
	return n, err
}

func (t *tarWriter) begin(name string, size int64) {
	if t.err != nil {
		return
	}
	h, err := header(name, size)
	if err != nil {
		t.err = err
		return
	}
	_, _ = t.Write(h)
}

func (t *tarWriter) pad(size int64) { _, _ = t.Write(make([]byte, padding(size))) }

func (t *tarWriter) file(name string, content []byte) {
	t.begin(name, int64(len(content)))
	_, _ = t.Write(content)
	t.pad(int64(len(content)))
}

func (t *tarWriter) end() { _, _ = t.Write(make([]byte, ending)) }

// tarReader reads what tarWriter wrote, and nothing else.
type tarReader struct{ r io.Reader }

// begin reads a header and returns the size of the file.
func (t *tarReader) begin(name string, limit int64) (int64, error) {
	var raw [block]byte
	if _, err := io.ReadFull(t.r, raw[:]); err != nil {
		return 0, fmt.Errorf("%w: read the header of %s: %w", ErrDamaged, name, err)
	}
	digits := bytes.TrimRight(raw[sizeField:sizeField+sizeBytes], "\x00 ")
	size, err := strconv.ParseInt(string(digits), 8, 64)
	if err != nil || size < 0 {
		return 0, fmt.Errorf("%w: there is no %s where it has to be", ErrDamaged, name)
	}
	want, err := header(name, size)
	if err != nil || !bytes.Equal(raw[:], want) {
		return 0, fmt.Errorf("%w: there is no %s where it has to be", ErrDamaged, name)
	}
	if size > limit {
		return 0, fmt.Errorf("%s has %d bytes, at most %d are possible", name, size, limit)
	}
	return size, nil
}

func (t *tarReader) pad(size int64) error { return t.zeros(padding(size)) }

func (t *tarReader) zeros(n int64) error {
	raw := make([]byte, n)
	if _, err := io.ReadFull(t.r, raw); err != nil {
		return fmt.Errorf("%w: it ends too early: %w", ErrDamaged, err)
	}
	if len(bytes.Trim(raw, "\x00")) > 0 {
		return fmt.Errorf("%w: something is where nothing has to be", ErrDamaged)
	}
	return nil
}

func (t *tarReader) file(name string, limit int64) ([]byte, error) {
	size, err := t.begin(name, limit)
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	if _, err := io.ReadFull(t.r, content); err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", ErrDamaged, name, err)
	}
	return content, t.pad(size)
}

func (t *tarReader) end() error {
	if err := t.zeros(ending); err != nil {
		return err
	}
	var one [1]byte
	switch n, err := t.r.Read(one[:]); {
	case n > 0:
		return fmt.Errorf("%w: something follows its end", ErrDamaged)
	case err != nil && !errors.Is(err, io.EOF):
		return fmt.Errorf("read the end of the snapshot archive: %w", err)
	}
	return nil
}
