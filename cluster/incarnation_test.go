package cluster_test

import (
	"bytes"
	"fmt"
	"testing"

	"trivet/cluster/clustertest"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// TestRestartRetiresTheProcessBefore: whatever a server's earlier process had
// under way is refused once the later one has registered, whether followers, the
// leader or all servers at once were restarted.
func TestRestartRetiresTheProcessBefore(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	registered(t, c)
	all := func() []*clustertest.Member { return c.Servers }
	for _, step := range []struct {
		name string
		who  func() []*clustertest.Member
	}{
		{"a follower", func() []*clustertest.Member { return c.Followers()[:1] }},
		{"the leader", func() []*clustertest.Member { return []*clustertest.Member{c.Leader()} }},
		{"all", all},
		{"all again", all},
	} {
		before := make(map[string]string)
		members := step.who()
		for _, m := range members {
			id := m.Server.ID()
			row, _ := m.Server.Root().Server(id)
			before[id] = row.GetBootId()
			c.Stop(m)
		}
		for _, m := range members {
			c.Restart(m)
		}
		registered(t, c)
		for id, boot := range before {
			writer := fmt.Sprintf("server/%s/%s", id, boot)
			for _, m := range c.Servers {
				if reason := lateWrite(t, m, writer); reason != fsm.ReasonRequestForgotten {
					t.Errorf("%s restarted: a late write of %s would end on %s with reason %q", step.name, writer, m.Name, reason)
				}
			}
		}
	}
}

// registered waits until every server shows the present process of each.
func registered(t *testing.T, c *clustertest.Cluster) {
	t.Helper()
	clustertest.Eventually(t, "every server shows the rows of all", func() bool {
		for _, m := range c.Servers {
			for _, o := range c.Servers {
				row, _ := m.Server.Root().Server(o.Server.ID())
				if row.GetBootId() != o.Server.BootID() {
					return false
				}
			}
		}
		return true
	})
}

// lateWrite is the reason for which a member's state would refuse a writer's
// first command if it arrived now; empty: it would be applied.
func lateWrite(t *testing.T, m *clustertest.Member, writer string) string {
	t.Helper()
	var raw bytes.Buffer
	if _, err := m.Server.State().WriteTo(&raw); err != nil {
		t.Fatal(err)
	}
	machine := fsm.New(fsm.Options{})
	if err := machine.Restore(&raw); err != nil {
		t.Fatal(err)
	}
	at := machine.Root().Position()
	at.Index++
	results, err := machine.Apply(at, &commandv1.Entry{Commands: []*commandv1.Command{{
		Version: fsm.CommandVersion, RequestId: &commandv1.RequestId{Writer: writer, Number: 1, Lowest: 1},
		Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: "late", Value: []byte("v")}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return results[0].GetReason()
}
