package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trivet/client"
	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/cluster/replica"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// writing writes through ops until stop and returns how many were acknowledged.
func writing(ctx context.Context, t *testing.T, ops []operatorsvc.OperatorClient) (stop func() int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	t.Cleanup(cancel)
	var n atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				if ctx.Err() != nil {
					return
				}
				if _, err := ops[w%len(ops)].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: fmt.Sprint("w", w), Value: fmt.Append(nil, i)}); err != nil {
					t.Errorf("write %d of %d: %v", i, w, err)
					return
				}
				n.Add(1)
			}
		})
	}
	return func() int64 { close(done); wg.Wait(); return n.Load() }
}

func operatorsOf(c *clustertest.Cluster, members []*clustertest.Member) []operatorsvc.OperatorClient {
	var out []operatorsvc.OperatorClient
	for _, m := range members {
		out = append(out, operatorsvc.NewOperatorClient(c.Conn(m, pki.RoleOperator, "op")))
	}
	return out
}

func voters(t *testing.T, m *clustertest.Member) map[string]bool {
	t.Helper()
	out := make(map[string]bool)
	list, err := m.Server.Members()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range list {
		if x.Voter {
			out[x.ID] = true
		}
	}
	return out
}

func TestServerJoinsAndLeavesWhileWritesGoOn(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	old := c.Leader()
	stop := writing(ctx, t, operatorsOf(c, c.Followers()))
	joined := c.Join("server-4")
	clustertest.Eventually(t, "the new server has a vote", func() bool { return voters(t, c.Servers[0])[joined.Server.ID()] })
	c.Leader()
	// The leader itself leaves, asked through the newcomer.
	if now := c.Leader(); now != old {
		t.Skipf("the busy machine made %s the leader", now.Name)
	}
	view := joined.Server.Operations()
	peer, err := view.RemovePeer(ctx, old.Name, false)
	if err != nil || peer.GetId() != old.Server.ID() {
		t.Fatalf("remove the leader: %v, %v", peer, err)
	}
	clustertest.Eventually(t, "the removed server says so", func() bool {
		for _, x := range old.Server.Checks() {
			if x.Name == "membership" && x.Level == cluster.LevelCritical && strings.Contains(x.Message, "removed") {
				return !old.Server.Ready()
			}
		}
		return false
	})
	if got := voters(t, joined); len(got) != 3 || got[old.Server.ID()] {
		t.Errorf("voters %v", got)
	}
	if n := stop(); n == 0 {
		t.Error("nothing was written")
	}
	c.Stop(old)
	c.Forget(old)
	c.SameDigests()
}

func TestDeadServerIsReplacedWhileWritesGoOn(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	dead := c.Followers()[0]
	id := dead.Server.ID()
	clustertest.Eventually(t, "the servers know its name", func() bool {
		_, ok := c.Leader().Server.Root().Server(id)
		return ok
	})
	c.Stop(dead)
	c.Forget(dead)
	stop := writing(ctx, t, operators(c))
	view := c.Leader().Server.Operations()
	// A server of the same name, on an empty disk at another address.
	fresh := c.Join(dead.Name)
	if _, err := view.AddPeer(ctx, &operatorv1.AddPeerRequest{Address: fresh.Address}); errs.Reason(err) != "SERVER_EXISTS" {
		t.Errorf("without saying whom it replaces: %v", err)
	}
	if _, err := view.AddPeer(ctx, &operatorv1.AddPeerRequest{Address: fresh.Address, Replaces: id}); err != nil {
		t.Fatal(err)
	}
	if got := voters(t, c.Leader()); len(got) != 3 || got[id] || !got[fresh.Server.ID()] {
		t.Errorf("voters %v", got)
	}
	// Asked again, nothing changes.
	if _, err := view.AddPeer(ctx, &operatorv1.AddPeerRequest{Address: fresh.Address, Replaces: id}); err != nil {
		t.Errorf("again: %v", err)
	}
	if n := stop(); n == 0 {
		t.Error("nothing was written")
	}
	c.SameDigests()
}

func TestChangesThatWouldLoseTheMajorityAreRefused(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	followers := c.Followers()
	view := c.Leader().Server.Operations()
	dead := followers[0].Server.ID()
	c.Stop(followers[0])
	if _, err := view.RemovePeer(ctx, followers[1].Name, false); errs.Reason(err) != "QUORUM_AT_RISK" {
		t.Errorf("remove one of the last two: %v", err)
	}
	if _, err := view.RemovePeer(ctx, dead, false); err != nil {
		t.Errorf("remove the dead one: %v", err)
	}
	if _, err := view.RemovePeer(ctx, "nobody", false); errs.Reason(err) != "SERVER_NOT_FOUND" {
		t.Errorf("remove nobody: %v", err)
	}
}

// TestServerWithoutItsStateIsRefusedUnderItsId: its log is gone while its id
// says that it had one.
func TestServerWithoutItsStateIsRefusedUnderItsId(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	m := c.Followers()[0]
	c.Stop(m)
	if err := os.RemoveAll(filepath.Join(m.DataDir, "raft")); err != nil {
		t.Fatal(err)
	}
	if err := c.TryRestart(m); !errors.Is(err, replica.ErrForeignData) {
		t.Errorf("started: %v", err)
	}
}

// TestServerThatMembersKnowWithStateIsRefusedWithout: its directory says that it
// has never had state, the members know better.
func TestServerThatMembersKnowWithStateIsRefusedWithout(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	m := c.Followers()[0]
	id := m.Server.ID()
	clustertest.Eventually(t, "the members have its row", func() bool {
		_, ok := c.Leader().Server.Root().Server(id)
		return ok
	})
	c.Stop(m)
	// As after a restore of the files of its very first moment.
	if err := os.RemoveAll(m.DataDir); err != nil {
		t.Fatal(err)
	}
	c.Restart(m)
	c.Stop(m)
	if err := os.WriteFile(filepath.Join(m.DataDir, "server-id"), []byte(id+" new\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Restart(m)
	ctx, cancel := context.WithTimeout(testContext(t), clustertest.Wait)
	defer cancel()
	if err := m.Server.Run(ctx); errs.Reason(err) != "STATE_LOST" {
		t.Errorf("it ended with %v", err)
	}
	m.Server = nil
}

func TestDirectoryOfAnotherClusterIsRefused(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	m := c.Servers[0]
	c.Stop(m)
	if err := os.WriteFile(filepath.Join(m.DataDir, "cluster-name"), []byte("other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.TryRestart(m); !errors.Is(err, replica.ErrForeignData) || !strings.Contains(err.Error(), `cluster "other"`) {
		t.Errorf("started: %v", err)
	}
}

// TestAServerThatIsNoMemberSaysSoAtOnce: who asks it first goes on to the next
// one, and does not wait for a leader that will not come.
func TestAServerThatIsNoMemberSaysSoAtOnce(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	joined := c.Join("server-4")
	op := operatorsOf(c, []*clustertest.Member{joined})[0]
	clustertest.Eventually(t, "it knows that it is no member", func() bool {
		// Less than a call is held for.
		wctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := op.PutConfig(wctx, &operatorv1.PutConfigRequest{Key: "k"})
		return errs.Reason(err) == "NOT_A_MEMBER"
	})
	if _, err := op.Status(ctx, &operatorv1.StatusRequest{}); err != nil {
		t.Errorf("status: %v", err)
	}
	dir := t.TempDir()
	if err := c.Source(pki.RoleOperator, "op").Bundle().Write(dir); err != nil {
		t.Fatal(err)
	}
	pool, err := client.Dial(ctx, client.Context{Servers: []string{joined.Address, c.Leader().Address}, Bundle: dir}, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := operatorsvc.NewOperatorClient(pool).AddPeer(ctx, &operatorv1.AddPeerRequest{Address: joined.Address}); err != nil {
		t.Fatal(err)
	}
	clustertest.Eventually(t, "it serves", func() bool {
		_, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k"})
		return err == nil
	})
}
