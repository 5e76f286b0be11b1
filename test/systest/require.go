package systest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"trivet/node/steal"
)

// Tool is a program that a test needs, and where it comes from.
type Tool struct {
	Command, Package string
}

// Tools of the tests.
var (
	NGINX = Tool{Command: "nginx", Package: "nginx-light"}
	Curl  = Tool{Command: "curl", Package: "curl"}
)

// path finds a tool. Daemons are in directories that a user's PATH may lack.
func (tool Tool) path() (string, bool) {
	if path, err := exec.LookPath(tool.Command); err == nil {
		return path, true
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		path := filepath.Join(dir, tool.Command)
		if st, err := os.Stat(path); err == nil && st.Mode()&0o111 != 0 {
			return path, true
		}
	}
	return "", false
}

// Path is where a tool that was required is.
func (tool Tool) Path(t testing.TB) string {
	t.Helper()
	path, ok := tool.path()
	if !ok {
		t.Fatalf("%s is not here (Debian package %s)", tool.Command, tool.Package)
	}
	return path
}

// Require skips the test when the kernel or the user's rights do not let the
// node steal connections, or when a tool is missing, and says which.
func Require(t testing.TB, tools ...Tool) {
	t.Helper()
	var unsupported *steal.ErrUnsupported
	switch err := steal.Probe(); {
	case err == nil:
	case errors.As(err, &unsupported):
		t.Skipf("SKIP reason: %v", unsupported)
	default:
		t.Fatalf("stealing should work here: %v", err)
	}
	for _, tool := range tools {
		if _, ok := tool.path(); !ok {
			t.Skipf("SKIP reason: %s is not installed (Debian package %s)", tool.Command, tool.Package)
		}
	}
}
