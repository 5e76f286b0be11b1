package cluster_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"trivet/cluster/clustertest"
)

// TestStartRemovesWhatACrashLeft: states on their way, and files that were
// written to take the place of another, do not pile up.
func TestStartRemovesWhatACrashLeft(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	n := c.Servers[0]
	c.Stop(n)
	var left []string
	for _, name := range []string{"incoming-1", "server-id.tmp", ".keyring.tmp-1"} {
		path := filepath.Join(n.DataDir, name)
		if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
			t.Fatal(err)
		}
		left = append(left, path)
	}
	c.Restart(n)
	for _, path := range left {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
}
