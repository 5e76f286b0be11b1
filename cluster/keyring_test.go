package cluster_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/seal"
)

// checkOf finds a check of a server.
func checkOf(m *clustertest.Member, name string) cluster.Check {
	for _, c := range m.Server.Checks() {
		if c.Name == name {
			return c
		}
	}
	return cluster.Check{}
}

// TestServersWithOtherSealKeysFindOutWhenTheyMeet: the odd one is not ready, and
// the others say which it is.
func TestServersWithOtherSealKeysFindOutWhenTheyMeet(t *testing.T) {
	odd, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	other := ""
	c := clustertest.Start(t, 3, func(cfg *cluster.Config) {
		if cfg.Name == other {
			cfg.Keyring, cfg.Issuing = odd, nil
		}
	})
	last := c.Followers()[0]
	for _, m := range c.Servers {
		clustertest.Eventually(t, m.Name+" is well", func() bool { return checkOf(m, "keys").Level == cluster.LevelOK })
	}
	c.Stop(last)
	if err := os.Remove(filepath.Join(last.DataDir, seal.FileName)); err != nil {
		t.Fatal(err)
	}
	other = last.Name
	c.Restart(last)
	for _, m := range c.Servers {
		want := cluster.LevelWarning
		if m == last {
			want = cluster.LevelCritical
		}
		clustertest.Eventually(t, m.Name+" says so", func() bool {
			k := checkOf(m, "keys")
			return k.Level == want && strings.Contains(k.Message, "no seal key in common") &&
				(m == last || strings.Contains(k.Message, last.Name))
		})
	}
}
