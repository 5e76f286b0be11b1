package system

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/systest"
)

// periodOfClients is how long a client may be silent, and less than which no
// restored session may live.
const periodOfClients = 15 * time.Second

// TestRestoreOnFreshServers loses the disks of all servers at once. The servers
// that follow have the same certificates and keys, and nothing else but a
// snapshot. Node, client and their certificates stay what they are.
func TestRestoreOnFreshServers(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	local := systest.StartLocal(t)
	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port})
	operate := func(args ...string) systest.Result {
		t.Helper()
		return c.Trivet(t, systest.OperatorContext, append([]string{"operator", "snapshot"}, args...)...)
	}
	ctx := systest.Deadline(t, 2*time.Minute)
	if _, err := c.Ops.Clients[0].PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("before")}); err != nil {
		t.Fatal(err)
	}
	token, err := c.Ops.Clients[0].CreateToken(ctx, &operatorv1.CreateTokenRequest{Role: "viewer", NameGlob: "visitor"})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(c.Dir, "saved")
	if r := operate("save", file); r.Code != 0 {
		t.Fatal(r.Err)
	}
	sessions := c.SessionIDs(t, 0)
	ids := serverIDs(t, c)
	before := info(t, c)

	for _, p := range c.Dev.Servers {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	lost := i.Mark()
	for _, p := range c.Dev.Servers {
		if err := os.RemoveAll(c.Dev.DataDir(p.Name)); err != nil {
			t.Fatal(err)
		}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Dev.WaitAllReady(systest.Deadline(t, settle)); err != nil {
		t.Fatal(err)
	}
	// Who has seen the old state is not shown an older one.
	fresh, err := c.Dev.Operators(systest.Deadline(t, settle))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fresh.Close)
	c.Ops = fresh
	for _, id := range serverIDs(t, c) {
		if slices.Contains(ids, id) {
			t.Errorf("a fresh server has the id %s of an old one", id)
		}
	}

	// The client finds them before they have the state: it opens a session there,
	// which the restore takes away again.
	i.Await(t, settle, "renewed", lost)
	again := i.Mark()
	damaged(t, c, file)
	if r := operate("restore", file, "--yes"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	restored := time.Now()
	after := info(t, c)
	if after.GetRestoreEpoch() <= before.GetRestoreEpoch() || after.GetClusterId() != before.GetClusterId() {
		t.Errorf("restore epoch %d of %s before, %d of %s after", before.GetRestoreEpoch(), before.GetClusterId(), after.GetRestoreEpoch(), after.GetClusterId())
	}
	c.WantSameState(t)
	lctx := metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable")
	for n, op := range c.Ops.Clients {
		r, err := op.GetConfig(lctx, &operatorv1.GetConfigRequest{Key: "k"})
		if err != nil || string(r.GetValue()) != "before" {
			t.Errorf("server %d: the saved key is %q, %v", n, r.GetValue(), err)
		}
	}
	for n := range c.Dev.Servers {
		got := c.SessionIDs(t, n)
		for _, id := range sessions {
			if !slices.Contains(got, id) && time.Since(restored) < periodOfClients {
				t.Errorf("server %d: the session %s ended %s after the restore", n, id, time.Since(restored))
			}
		}
	}
	systest.Eventually(t, settle, "the intercept is active on all servers", func() error {
		for n := range c.Dev.Servers {
			got := c.Intercepts(t, n)
			if len(got) != 1 || got[0].Name != i.Name || got[0].Disposition != "ACTIVE" || got[0].OwnerState != "PRESENT" || got[0].ID != i.ID {
				return fmt.Errorf("server %d shows %+v", n, got)
			}
		}
		return systest.WantAll(systest.Together(t.Context(), 4, c.V4, c.V6), systest.Local)
	})
	answeredBy(t, c, systest.Local)
	// It goes on with the session that it had at first, not with a third one.
	if renewed := i.Events("renewed", again); len(renewed) != 1 {
		t.Errorf("after the restore the client renewed its session %d times: %+v", len(renewed), renewed)
	}
	t.Logf("the intercept was whole %s after the restore", time.Since(restored).Round(time.Millisecond))
	env := []string{"TRIVET_CONFIG=" + filepath.Join(t.TempDir(), "context.yaml")}
	if r := systest.Trivet(t, env, "login", "--token", token.GetSecret(), "--name", "visitor", "--server", c.Dev.Addresses[1]); r.Code != 0 {
		t.Errorf("a token of the snapshot: %s", r.Err)
	}
	if r := systest.Trivet(t, env, "session", "list"); r.Code != 0 {
		t.Errorf("a certificate for a token of the snapshot: %s", r.Err)
	}
	i.Interrupt(t)
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
}

// damaged flips one byte of a snapshot and wants it refused with nothing
// changed.
func damaged(t *testing.T, c *systest.Cluster, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw[len(raw)/2] ^= 1
	bad := file + "-damaged"
	if err := os.WriteFile(bad, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	before := info(t, c)
	r := c.Trivet(t, systest.OperatorContext, "operator", "snapshot", "restore", bad, "--yes", "-o", "json")
	if r.Code == 0 || !strings.Contains(r.Err+r.Out, "SNAPSHOT_DAMAGED") {
		t.Errorf("a flipped byte: exit %d, %s%s", r.Code, r.Out, r.Err)
	}
	if after := info(t, c); after.GetRestoreEpoch() != before.GetRestoreEpoch() || after.GetRevision() < before.GetRevision() {
		t.Errorf("the refused snapshot changed something: %v, then %v", before, after)
	}
	c.WantSameState(t)
}

// info is what the first server says of itself, once it can be asked.
func info(t *testing.T, c *systest.Cluster) (r *operatorv1.RaftInfoResponse) {
	t.Helper()
	systest.Eventually(t, settle, "a server tells of itself", func() (err error) {
		r, err = c.Ops.Clients[0].RaftInfo(t.Context(), &operatorv1.RaftInfoRequest{})
		return err
	})
	return r
}

func serverIDs(t *testing.T, c *systest.Cluster) (ids []string) {
	t.Helper()
	systest.Eventually(t, settle, "a server lists its peers", func() error {
		r, err := c.Ops.Clients[0].ListPeers(t.Context(), &operatorv1.ListPeersRequest{})
		for _, p := range r.GetPeers() {
			ids = append(ids, p.GetId())
		}
		return err
	})
	return ids
}
