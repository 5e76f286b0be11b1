package systest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"trivet/internal/spawn"
)

// binaryVariable names a trivet that was built already.
const binaryVariable = "TRIVET_BIN"

// startSpawner returns the one from which all processes of the tests start.
var startSpawner = sync.OnceValue(spawn.New)

// workDir is this test process's own; set by Main.
var workDir string

// Main runs the tests of a package, for its TestMain, and removes what was
// built for them.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "trivet-systest-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	workDir = dir
	code := m.Run()
	startSpawner().Close()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// build makes the binary, once per test process.
var build = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(binaryVariable); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("%s: %w", binaryVariable, err)
		}
		return filepath.Abs(path)
	}
	path := filepath.Join(workDir, "trivet")
	cmd := exec.Command("go", "build", "-o", path, "trivet/cmd/trivet")
	// As it is released: static, without the race detector of the test.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build trivet: %w\n%s", err, out)
	}
	return path, nil
})

// Binary is the path of trivet: that of $TRIVET_BIN, or one built for this test
// process.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// OlderBinary is a trivet that knows only the commands of the version before,
// built for this test process.
func OlderBinary(t testing.TB) string {
	t.Helper()
	path, err := buildOlder()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildOlder = sync.OnceValues(func() (string, error) {
	path := filepath.Join(workDir, "trivet-older")
	cmd := exec.Command("go", "build", "-tags", "older", "-o", path, "trivet/cmd/trivet")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the older trivet: %w\n%s", err, out)
	}
	return path, nil
})
