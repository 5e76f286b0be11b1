package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/yaml"

	"trivet/internal/errs"
)

// Reasons of the errors that this package returns.
const (
	// ReasonInvalid: the content of a file, or of a variable, is refused.
	ReasonInvalid = "CONFIG_INVALID"
	// ReasonMissing: the file does not exist.
	ReasonMissing = "CONFIG_MISSING"
	// ReasonUnreadable: the file exists and cannot be read.
	ReasonUnreadable = "CONFIG_UNREADABLE"
)

// maxFileBytes bounds what Load reads. Context files carry certificates, which
// makes tens of KiB; a mistaken path to something huge must not fill memory.
const maxFileBytes = 4 << 20

// Defaulter is implemented by the pointer of a configuration that has defaults.
type Defaulter interface {
	// SetDefaults fills in what an empty file means.
	SetDefaults()
}

// Load reads the YAML file at path into a new T, over T's defaults. The error
// is an *errs.Error that names the file and each refused key.
func Load[T any](path string) (*T, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse[T](path, data)
}

// Parse is Load for a document that is already in memory; name stands for the
// file in errors.
func Parse[T any](name string, data []byte) (*T, error) {
	out := new(T)
	if d, ok := any(out).(Defaulter); ok {
		d.SetDefaults()
	}
	if err := refuseSecondDocument(name, data); err != nil {
		return nil, err
	}
	doc, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errs.New(codes.InvalidArgument, ReasonInvalid, "%s: %s", name, yamlCause(err)).
			WithHint("the file must be one YAML document; check indentation and quotes near that line")
	}
	if string(doc) == "null" { // nothing but comments
		return out, nil
	}
	if err := check(name, doc, out); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(doc, out); err != nil {
		return nil, errs.New(codes.InvalidArgument, ReasonInvalid, "%s: %w", name, err)
	}
	return out, nil
}

// Save writes v as YAML to path with the permission perm. The file is replaced
// as a whole: a reader, or a crash, sees either the old or the new content.
func Save(path string, v any, perm fs.FileMode) error {
	data, err := yaml.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s: %w", path, err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of %s: %w", path, err)
	}
	tmp, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(perm), tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(tmp.Name()))
	}
	return nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errs.New(codes.NotFound, ReasonMissing, "%s does not exist: %w", path, fs.ErrNotExist)
	case err != nil:
		return nil, errs.New(codes.FailedPrecondition, ReasonUnreadable, "read configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, errs.New(codes.FailedPrecondition, ReasonUnreadable, "read configuration: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, errs.New(codes.InvalidArgument, ReasonInvalid,
			"%s is larger than %d MiB and cannot be a configuration", path, maxFileBytes>>20)
	}
	return data, nil
}

// refuseSecondDocument guards against what the YAML library does with a file
// of two documents: it reads the first and is silent about the other.
func refuseSecondDocument(name string, data []byte) error {
	content := false
	for n, line := range strings.Split(string(data), "\n") {
		marker := line == "---" || strings.HasPrefix(line, "--- ") || strings.HasPrefix(line, "---\r")
		if marker && content {
			return errs.New(codes.InvalidArgument, ReasonInvalid,
				"%s: line %d begins a second YAML document; only one is read", name, n+1)
		}
		text := strings.TrimSpace(line)
		if text != "" && !marker && text[0] != '#' && text[0] != '%' {
			content = true
		}
	}
	return nil
}

// yamlCause turns the library's text into one line without its own prefixes.
func yamlCause(err error) string {
	text := err.Error()
	for _, prefix := range []string{"yaml: unmarshal errors:", "yaml: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return strings.Join(strings.Fields(text), " ")
}
