package recover_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/cluster/clustertest"
	"trivet/cluster/recover"
	"trivet/cluster/replica"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func put(ctx context.Context, t *testing.T, op operatorsvc.OperatorClient, value string) uint64 {
	t.Helper()
	got, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte(value)})
	if err != nil {
		t.Fatal(err)
	}
	return got.GetRevision()
}

// TestLastServerGoesOnAlone: two of three are lost for good.
func TestLastServerGoesOnAlone(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx, cancel := context.WithTimeout(t.Context(), clustertest.Wait)
	defer cancel()
	left := c.Leader()
	id := left.Server.ID()
	op := operatorsvc.NewOperatorClient(c.Conn(left, pki.RoleOperator, "op"))
	first := put(ctx, t, op, "one")
	put(ctx, t, op, "two")
	last := put(ctx, t, op, "three")
	alone := []replica.Member{{ID: id, Address: left.Address, Voter: true}}
	now := time.Unix(1, 0)
	if _, err := recover.Recover(ctx, left.DataDir, alone, now); !errors.Is(err, recover.ErrInUse) {
		t.Fatalf("while it runs: %v", err)
	}
	for _, m := range append(c.Followers(), left) {
		c.Stop(m)
		if m != left {
			c.Forget(m)
		}
	}
	for _, tc := range []struct {
		at   replica.At
		want string
	}{{replica.At{}, "three"}, {replica.At{Revision: last}, "three"}, {replica.At{Revision: last - 1}, "two"}, {replica.At{Revision: first}, "one"}} {
		root, err := recover.State(ctx, left.DataDir, tc.at)
		if err != nil {
			t.Fatalf("at %+v: %v", tc.at, err)
		}
		if row, _ := root.Config("k"); string(row.GetValue()) != tc.want {
			t.Errorf("at %+v it was %q, want %q", tc.at, row.GetValue(), tc.want)
		}
	}
	if _, err := recover.Recover(ctx, left.DataDir, []replica.Member{{ID: "other", Address: "a:1", Voter: true}}, now.Add(time.Hour)); err == nil {
		t.Error("recovered without the server itself")
	}
	backup, err := recover.Recover(ctx, left.DataDir, alone, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(backup, "server-id")); err != nil {
		t.Errorf("the copy of before: %v", err)
	}
	c.Restart(left)
	op = operatorsvc.NewOperatorClient(c.Conn(left, pki.RoleOperator, "op"))
	if got, err := op.GetConfig(ctx, &operatorv1.GetConfigRequest{Key: "k"}); err != nil || string(got.GetValue()) != "three" {
		t.Errorf("after the recovery: %q, %v", got.GetValue(), err)
	}
	put(ctx, t, op, "four")
	// What is before the snapshot that the recovery made is in the copy only.
	if _, err := recover.State(ctx, backup, replica.At{Revision: first}); err != nil {
		t.Errorf("the copy: %v", err)
	}
}

func TestDirectoryWithoutStateIsRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := recover.Recover(t.Context(), dir, nil, time.Now()); !errors.Is(err, replica.ErrNoState) {
		t.Errorf("recover: %v", err)
	}
	if _, err := recover.State(t.Context(), dir, replica.At{}); !errors.Is(err, replica.ErrNoState) {
		t.Errorf("state: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("something was made there: %v, %v", entries, err)
	}
}
