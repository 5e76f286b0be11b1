package replica

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"trivet/fsm"
)

func TestDirectoryRemembersWhetherItEverHadState(t *testing.T) {
	m := open(t, t.TempDir(), "127.0.0.1:0", nil)
	read := func() identity {
		t.Helper()
		id, err := loadID(m.cfg.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	if id := read(); id.id != m.ID() || !id.unborn || !m.Fresh() {
		t.Errorf("before the bootstrap: %+v, fresh %v", id, m.Fresh())
	}
	m.stop(t)
	m.restart(t)
	if m.Fresh() || m.HasState() {
		t.Errorf("after a restart without state: fresh %v, state %v", m.Fresh(), m.HasState())
	}
	bootstrap(t, m)
	m.lead(t)
	if id := read(); id.id != m.ID() || id.unborn {
		t.Errorf("after the bootstrap: %+v", id)
	}
	// An empty log under the id of one that had state.
	m.stop(t)
	other := open(t, t.TempDir(), "127.0.0.1:0", nil)
	other.stop(t)
	raw, err := os.ReadFile(filepath.Join(m.cfg.DataDir, idFile))
	if err == nil {
		err = os.WriteFile(filepath.Join(other.cfg.DataDir, idFile), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	other.cfg.Machine = fsm.New(fsm.Options{})
	if r, err := Open(other.cfg); !errors.Is(err, ErrForeignData) {
		t.Errorf("an empty log under an old id: %v, %v", r, err)
	}
}

func TestDirectoryOfAnotherClusterIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(checkCluster(dir, "one"), checkCluster(dir, "one"), checkCluster(dir, "")); err != nil {
		t.Fatal(err)
	}
	if err := checkCluster(dir, "two"); !errors.Is(err, ErrForeignData) {
		t.Errorf("got %v", err)
	}
}
