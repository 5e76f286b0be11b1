package cluster_test

import (
	"strings"
	"testing"
	"time"

	"trivet/cluster"
	"trivet/cluster/clustertest"
)

func TestLatencyIsComparedWithTheLease(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		trips      map[string]time.Duration
		multiplier int
		level      string
		says, hint string
	}{
		"nothing measured":      {nil, 1, cluster.LevelOK, "not measured", ""},
		"one rack":              {map[string]time.Duration{"a": ms / 2, "b": ms}, 1, cluster.LevelOK, "answers in 1ms, the leader's lease is 250ms", ""},
		"just enough":           {map[string]time.Duration{"a": 83 * ms}, 1, cluster.LevelOK, "83ms", ""},
		"one is far":            {map[string]time.Duration{"a": ms, "b": 120 * ms}, 1, cluster.LevelWarning, "b answers in 120ms", "raftMultiplier to 2 on all servers"},
		"far, and allowed for":  {map[string]time.Duration{"a": 120 * ms}, 2, cluster.LevelOK, "lease is 500ms", ""},
		"farther than that":     {map[string]time.Duration{"a": 300 * ms}, 2, cluster.LevelWarning, "a answers in 300ms", "raftMultiplier to 4"},
		"the other side of all": {map[string]time.Duration{"a": time.Second}, 10, cluster.LevelWarning, "a answers in 1s", "nearer to each other"},
	} {
		got := cluster.LatencyCheck(c.trips, 250*ms*time.Duration(c.multiplier), c.multiplier)
		if got.Level != c.level || !strings.Contains(got.Message, c.says) || !strings.Contains(got.Hint, c.hint) || c.hint == "" && got.Hint != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestServersMeasureTheRoundTripsToEachOther(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	c.Leader()
	clustertest.Eventually(t, "every server has measured", func() bool {
		for _, m := range c.Servers {
			for _, x := range m.Server.Checks() {
				if x.Name == "latency" && !strings.Contains(x.Message, "answers in") {
					return false
				}
			}
		}
		return true
	})
}

// TestACheckThatFindsSeveralThingsIsOneSeries: two of one name would fail the
// whole scrape.
func TestACheckThatFindsSeveralThingsIsOneSeries(t *testing.T) {
	got := cluster.WorstByName([]cluster.Check{
		{Name: "log", Level: cluster.LevelCritical}, {Name: "log", Level: cluster.LevelWarning}, {Name: "disk", Level: cluster.LevelOK},
	})
	if len(got) != 2 || got["log"] != 2 || got["disk"] != 0 {
		t.Errorf("%v", got)
	}
}
