package systest

import (
	"os"
	"strings"
	"sync"
	"testing"
)

var (
	dirsMu sync.Mutex
	dirs   = map[testing.TB]string{} // guarded by dirsMu
)

// keepVariable makes directories stay whatever the outcome.
const keepVariable = "TRIVET_KEEP"

// Dir is the test's own directory, for logs, certificates and data. It stays
// when the test fails, or with TRIVET_KEEP=1. What is big belongs into
// t.TempDir, which never does.
func Dir(t testing.TB) string {
	t.Helper()
	dirsMu.Lock()
	defer dirsMu.Unlock()
	if dir, ok := dirs[t]; ok {
		return dir
	}
	name := strings.NewReplacer("/", "-", " ", "-").Replace(t.Name())
	dir, err := os.MkdirTemp("", "trivet-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	dirs[t] = dir
	t.Cleanup(func() {
		dirsMu.Lock()
		delete(dirs, t)
		dirsMu.Unlock()
		if t.Failed() || os.Getenv(keepVariable) == "1" {
			t.Logf("what the processes wrote is in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
