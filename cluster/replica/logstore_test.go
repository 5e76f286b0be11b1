package replica

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trivet/cluster/logstore"
	"trivet/internal/errs"
)

func TestDamagedLogIsRefusedWithAHint(t *testing.T) {
	m := single(t, nil)
	m.write(t, "some-key", 20)
	m.stop(t)
	path := filepath.Join(m.cfg.DataDir, raftDir, "log.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, broken := range map[string][]byte{
		"changed": bytes.ReplaceAll(whole, []byte("some-key"), []byte("some-kex")),
		"cut off": whole[:len(whole)/2],
		"empty":   {},
	} {
		if err := os.WriteFile(path, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(m.cfg)
		if e := errs.From(err); !errors.Is(err, logstore.ErrCorrupt) || !strings.Contains(e.Message, path) || !strings.Contains(e.Hint, "as a new one") {
			t.Errorf("%s: %v, hint %q", name, err, e.Hint)
		}
	}
}
