// Package chaostest builds the servers that chaos tests disturb, once per test
// process and set of build tags.
package chaostest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

var built struct {
	sync.Mutex
	dir   string
	paths map[string]string // by tags
}

// Binary is the path of a trivet that was built with these tags. Remove
// removes it.
func Binary(t testing.TB, tags string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if path := built.paths[tags]; path != "" {
		return path
	}
	path, err := build(tags)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build runs with the lock held.
func build(tags string) (string, error) {
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "trivet-chaostest-")
		if err != nil {
			return "", err
		}
		built.dir, built.paths = dir, make(map[string]string)
	}
	path := filepath.Join(built.dir, fmt.Sprintf("trivet-%d", len(built.paths)))
	cmd := exec.Command("go", "build", "-tags", tags, "-o", path, "trivet/cmd/trivet")
	// As it is released: static, without the race detector of the test.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build trivet with -tags %s: %w\n%s", tags, err, out)
	}
	built.paths[tags] = path
	return path, nil
}

// Main runs the tests of a package, for its TestMain, and removes what was
// built for them.
func Main(m *testing.M) int {
	code := m.Run()
	if err := Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Remove removes what was built. No process of it may run any more.
func Remove() error {
	built.Lock()
	defer built.Unlock()
	dir := built.dir
	built.dir, built.paths = "", nil
	if dir == "" {
		return nil
	}
	return os.RemoveAll(dir)
}
