package cluster_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

func saved(t *testing.T, m *clustertest.Member) []byte {
	t.Helper()
	var buf bytes.Buffer
	if _, err := m.Server.Operations().SaveSnapshot(testContext(t), &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func getConfig(t *testing.T, op operatorsvc.OperatorClient, key string) string {
	t.Helper()
	got, err := op.GetConfig(metadata.AppendToOutgoingContext(testContext(t), engine.MetaConsistency, "linearizable"), &operatorv1.GetConfigRequest{Key: key})
	if err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return string(got.GetValue())
}

// TestRestoredStateIsThatOfTheSnapshot: on the same cluster, asked through a
// follower, while watches of a stock peer are open.
func TestRestoredStateIsThatOfTheSnapshot(t *testing.T) {
	f := newFleet(t, 3)
	c, ctx := f.Cluster, f.ctx
	ops := operators(c)
	follower := c.Followers()[0]
	put := func(key, value string) {
		t.Helper()
		if _, err := ops[0].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	var watches []func() *manager.InterceptInfoSnapshot
	for _, m := range c.Servers {
		watches = append(watches, watchIntercepts(ctx, t, managersvc.NewManagerClient(c.Conn(m, pki.RoleOperator, "op"))))
	}
	put("k", "before")
	archived := saved(t, follower)
	put("k", "after")
	put("only-later", "x")
	revision := c.Leader().Server.Root().Revision()
	got, err := follower.Server.Operations().RestoreSnapshot(ctx, "op", bytes.NewReader(archived))
	if err != nil {
		t.Fatal(err)
	}
	if got.GetRestoreEpoch() != 1 || got.GetRevision() <= revision {
		t.Errorf("restored as revision %d, epoch %d; before it was %d", got.GetRevision(), got.GetRestoreEpoch(), revision)
	}
	for i, op := range ops {
		if v := getConfig(t, op, "k"); v != "before" {
			t.Errorf("server %d shows %q", i, v)
		}
	}
	put("k", "goes on")
	c.SameDigests()
	for _, m := range c.Servers {
		if _, ok := m.Server.Root().Config("only-later"); ok {
			t.Errorf("%s still has what was written after the snapshot", m.Name)
		}
		clustertest.Eventually(t, "its row is there again", func() bool {
			_, ok := m.Server.Root().Server(m.Server.ID())
			return ok
		})
	}
	// The streams are the same and still tell the truth.
	f.intercept()
	for _, next := range watches {
		for {
			if snap := next(); len(snap.GetIntercepts()) == 1 {
				break
			}
		}
	}
}

// intercept makes an agent, a client and its intercept.
func (f *fleet) intercept() {
	f.t.Helper()
	f.arriveAgent(f.manager(0, pki.RoleNode, "node-1"))
	alice := f.manager(0, pki.RoleClient, "alice")
	sess := f.arriveClient(alice, "alice")
	_, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(f.t, err)
}

// watchIntercepts opens a watch of all intercepts and returns how to read it.
func watchIntercepts(ctx context.Context, t *testing.T, m managersvc.ManagerClient) func() *manager.InterceptInfoSnapshot {
	t.Helper()
	stream, err := m.WatchIntercepts(ctx, new(manager.SessionInfo))
	if err != nil {
		t.Fatal(err)
	}
	next := func() *manager.InterceptInfoSnapshot {
		t.Helper()
		snap, err := stream.Recv()
		if err != nil {
			t.Fatalf("the watch ended: %v", err)
		}
		return snap
	}
	next()
	return next
}

func TestSnapshotOnFreshServers(t *testing.T) {
	f := newFleet(t, 3)
	ctx := f.ctx
	f.intercept()
	archived := saved(t, f.Leader())
	d := clustertest.Start(t, 3, nil)
	if _, err := d.Followers()[0].Server.Operations().RestoreSnapshot(ctx, "op", bytes.NewReader(archived)); err != nil {
		t.Fatal(err)
	}
	if _, err := operators(d)[0].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	d.SameDigests()
	for _, m := range d.Servers {
		root := m.Server.Root()
		if root.Len(fsm.TableIntercepts) != 1 || root.Len(fsm.TableSessions) != 2 {
			t.Errorf("%s has %d intercepts, %d sessions", m.Name, root.Len(fsm.TableIntercepts), root.Len(fsm.TableSessions))
		}
	}
	if cluster.KnowsRemoveServer() {
		clustertest.Eventually(t, "the rows of the old servers go", func() bool { return d.Servers[0].Server.Root().Len(fsm.TableServers) == 3 })
	}
}

func TestDamagedSnapshotChangesNothing(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	ctx := testContext(t)
	op := operators(c)[0]
	if _, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: bytes.Repeat([]byte("v"), 2000)}); err != nil {
		t.Fatal(err)
	}
	archived := saved(t, c.Servers[0])
	before := c.Servers[0].Server.Root()
	for i := 0; i < len(archived); i += 97 {
		bad := bytes.Clone(archived)
		bad[i] ^= 0x10
		if _, err := c.Servers[0].Server.Operations().RestoreSnapshot(ctx, "op", bytes.NewReader(bad)); errs.Reason(err) != "SNAPSHOT_DAMAGED" {
			t.Fatalf("byte %d of %d: %v", i, len(archived), err)
		}
	}
	// The server goes on with its own writes meanwhile.
	after := c.Servers[0].Server.Root()
	row, _ := after.Config("k")
	if after.Revision() < before.Revision() || after.Meta().GetRestoreEpoch() != before.Meta().GetRestoreEpoch() || len(row.GetValue()) != 2000 {
		t.Error("the state is another one")
	}
}

// TestWatchLivesThroughAnInstalledSnapshot: a follower that was cut off gets a
// snapshot instead of the entries.
func TestWatchLivesThroughAnInstalledSnapshot(t *testing.T) {
	f := newFleet(t, 3, func(cfg *cluster.Config) { cfg.CompareEvery = time.Hour })
	follower := f.Followers()[0]
	next := watchIntercepts(f.ctx, t, managersvc.NewManagerClient(f.Conn(follower, pki.RoleOperator, "op")))
	// The state is replaced under the watch, as an installed snapshot does.
	if err := follower.Server.Corrupt(); err != nil {
		t.Fatal(err)
	}
	f.intercept()
	for len(next().GetIntercepts()) != 1 {
	}
}

func TestServerWhoseStateDivergedHealsItself(t *testing.T) {
	for _, who := range []string{"leader", "follower"} {
		t.Run(who, func(t *testing.T) {
			c := clustertest.Start(t, 3, func(cfg *cluster.Config) { cfg.CompareEvery = 100 * time.Millisecond })
			ctx := testContext(t)
			odd := c.Leader()
			if who == "follower" {
				odd = c.Followers()[0]
			}
			ops := operators(c)
			if _, err := ops[0].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("v")}); err != nil {
				t.Fatal(err)
			}
			if err := odd.Server.Corrupt(); err != nil {
				t.Fatal(err)
			}
			clustertest.Eventually(t, "the difference is found and healed", func() bool {
				_, healed := odd.Server.Integrity().Counts()
				return healed == 1 && !odd.Server.Integrity().Diverged()
			})
			if _, err := ops[0].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("w")}); err != nil {
				t.Fatal(err)
			}
			c.SameDigests()
			for _, m := range c.Servers {
				if m != odd {
					if _, healed := m.Server.Integrity().Counts(); healed != 0 {
						t.Errorf("%s took another state over, and was right", m.Name)
					}
				}
			}
			// What it has now survives a restart: the log goes on from there.
			c.Stop(odd)
			c.Restart(odd)
			c.SameDigests()
		})
	}
}

func TestServerWithAWrongClockDoesNotLead(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	old := c.Leader()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		// Both others say that this one is a minute behind.
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			for _, m := range c.Servers {
				if m != old {
					old.Server.SetClock(m.Server.ID(), time.Minute)
				}
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-done }()
	clustertest.Eventually(t, "it hands leadership over", func() bool { return !old.Server.IsLeader() && c.Leader() != old })
	// The servers greet each other meanwhile, and measure their real clocks for a
	// moment.
	clustertest.Eventually(t, "it says so and may not lead", func() bool {
		return checkOf(old, "clock").Level == cluster.LevelWarning && strings.Contains(checkOf(old, "clock").Message, "majority") && !old.Server.MayLead()
	})
}
