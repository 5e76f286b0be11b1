package workload

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
)

// maxEnviron bounds what is read of a process's environment; the kernel allows
// far more, a session that carries it does not.
const maxEnviron = 1 << 20

// Environment returns the variables of the container: those of its process, if
// the source names one, and over them those that the source states. The map
// belongs to the caller. When the process cannot be read, the stated ones are
// returned together with the error.
func (c Container) Environment() (map[string]string, error) {
	out := map[string]string{}
	var err error
	if c.pid > 0 {
		out, err = readEnviron(filepath.Join("/proc", strconv.Itoa(c.pid), "environ"))
	}
	maps.Copy(out, c.env)
	if err != nil {
		err = fmt.Errorf("read the environment of container %s: %w", c.Name, err)
	}
	return out, err
}

func readEnviron(path string) (map[string]string, error) {
	out := map[string]string{}
	f, err := os.Open(path)
	if err != nil {
		return out, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxEnviron+1))
	if err != nil {
		return out, err
	}
	if len(data) > maxEnviron {
		return out, fmt.Errorf("%s has more than %d bytes", path, maxEnviron)
	}
	for entry := range bytes.SplitSeq(data, []byte{0}) {
		// The first one wins, as it does for getenv.
		name, value, ok := bytes.Cut(entry, []byte("="))
		if _, twice := out[string(name)]; ok && len(name) > 0 && !twice {
			out[string(name)] = string(value)
		}
	}
	return out, nil
}
