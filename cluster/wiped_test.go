package cluster_test

import (
	"context"
	"os"
	"testing"
	"time"

	"trivet/cluster/clustertest"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// TestServerThatLostItsDataNeitherVotesNorAcknowledges: it comes back under a
// new id at the old address, and must not pass for the server that it was.
func TestServerThatLostItsDataNeitherVotesNorAcknowledges(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	leader, followers := c.Leader(), c.Followers()
	wiped, other := followers[0], followers[1]
	op := operatorsvc.NewOperatorClient(c.Conn(leader, pki.RoleOperator, "op"))
	if _, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("before")}); err != nil {
		t.Fatal(err)
	}
	c.Stop(wiped)
	if err := os.RemoveAll(wiped.DataDir); err != nil {
		t.Fatal(err)
	}
	c.Restart(wiped)
	if _, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("two of three")}); err != nil {
		t.Fatalf("a write that the two others have: %v", err)
	}
	c.Stop(other)
	// Only the leader is left of those that the configuration names.
	wctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	if _, err := op.PutConfig(wctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("lost")}); err == nil {
		t.Error("a write was acknowledged with the help of a server that is not in the configuration")
	}
	if wiped.Server.Ready() {
		t.Error("the server that lost its data is ready")
	}
	c.Restart(other)
	clustertest.Eventually(t, "writes with the two that kept their data", func() bool {
		_, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k", Value: []byte("after")})
		return err == nil
	})
}
