package cluster_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/clustertest"
	"trivet/cluster/engine"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

func operators(c *clustertest.Cluster) []operatorsvc.OperatorClient {
	var out []operatorsvc.OperatorClient
	for _, m := range c.Servers {
		out = append(out, operatorsvc.NewOperatorClient(c.Conn(m, pki.RoleOperator, "op")))
	}
	return out
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), clustertest.Wait)
	t.Cleanup(cancel)
	return ctx
}

func TestWriteThroughAnyServerIsReadFromEveryServer(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	for i, w := range ops {
		key := fmt.Sprintf("key-%d", i)
		put, err := w.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte("v")})
		if err != nil {
			t.Fatalf("write through %s: %v", c.Servers[i].Name, err)
		}
		for j, r := range ops {
			for _, level := range []string{"default", "linearizable"} {
				got, err := r.GetConfig(metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, level), &operatorv1.GetConfigRequest{Key: key})
				if err != nil {
					t.Fatalf("%s read from %s of a write through %s: %v", level, c.Servers[j].Name, c.Servers[i].Name, err)
				}
				if got.GetModifyRevision() != put.GetRevision() {
					t.Errorf("%s read from %s: modify revision %d, want %d", level, c.Servers[j].Name, got.GetModifyRevision(), put.GetRevision())
				}
			}
		}
	}
	c.SameDigests()
}

func TestRepeatedRequestNumberIsAppliedOnce(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	numbered := metadata.AppendToOutgoingContext(ctx, engine.MetaRequest, "boot/1/1")
	var first uint64
	for i, op := range operators(c) {
		put, err := op.PutConfig(numbered, &operatorv1.PutConfigRequest{Key: "once", Value: []byte("v")})
		if err != nil {
			t.Fatalf("attempt %d: %v", i, err)
		}
		if i == 0 {
			first = put.GetRevision()
		} else if put.GetRevision() != first {
			t.Errorf("attempt %d was applied again: revision %d, first %d", i, put.GetRevision(), first)
		}
	}
	_, err := operators(c)[0].PutConfig(numbered, &operatorv1.PutConfigRequest{Key: "once", Value: []byte("other")})
	if errs.Code(err) != codes.Aborted {
		t.Errorf("another payload under the same number: %v, want Aborted", err)
	}
}

func TestWritesGoOnAfterTheLeaderStops(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	old := c.Leader()
	survivor := operatorsvc.NewOperatorClient(c.Conn(c.Followers()[0], pki.RoleOperator, "op"))
	if _, err := survivor.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("before")}); err != nil {
		t.Fatal(err)
	}
	c.Stop(old)
	if _, err := survivor.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("after")}); err != nil {
		t.Fatalf("write after the leader stopped: %v", err)
	}
	c.Restart(old)
	back := operatorsvc.NewOperatorClient(c.Conn(old, pki.RoleOperator, "op"))
	got, err := back.GetConfig(metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable"), &operatorv1.GetConfigRequest{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if string(got.GetValue()) != "after" {
		t.Errorf("the restarted server shows %q", got.GetValue())
	}
	c.SameDigests()
}

func TestLinearizableReadOnAQuietCluster(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := metadata.AppendToOutgoingContext(testContext(t), engine.MetaConsistency, "linearizable")
	op := operators(c)[0]
	status, err := op.Status(ctx, &operatorv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if _, err := op.ListNodes(ctx, &operatorv1.ListNodesRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	after, err := op.Status(ctx, &operatorv1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if after.GetTerm() != status.GetTerm() {
		t.Errorf("term went from %d to %d", status.GetTerm(), after.GetTerm())
	}
}

func TestTransferLeadershipThroughAFollower(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	old := c.Leader()
	followers := c.Followers()
	op := operatorsvc.NewOperatorClient(c.Conn(followers[0], pki.RoleOperator, "op"))
	got, err := op.TransferLeadership(ctx, &operatorv1.TransferLeadershipRequest{To: followers[1].Name})
	if err != nil {
		t.Fatal(err)
	}
	if got.GetFrom() != old.Name || got.GetLeader() != followers[1].Name {
		t.Errorf("leadership went from %s to %s, want from %s to %s", got.GetFrom(), got.GetLeader(), old.Name, followers[1].Name)
	}
	if _, err := op.TransferLeadership(ctx, &operatorv1.TransferLeadershipRequest{To: "nobody"}); errs.Code(err) != codes.NotFound {
		t.Errorf("transfer to an unknown server: %v, want NotFound", err)
	}
}
