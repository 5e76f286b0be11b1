package cluster_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/cluster/limits"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

func TestWatchesBeyondTheLimitAreRefusedWithAReason(t *testing.T) {
	c := clustertest.Start(t, 1, func(cfg *cluster.Config) { cfg.Quotas = limits.Config{Watches: 2, Connections: 3} })
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	watch := func(who string) error {
		op := operatorsvc.NewOperatorClient(c.Conn(c.Servers[0], pki.RoleViewer, who))
		stream, err := op.Watch(ctx, &operatorv1.WatchRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	for range 2 {
		if err := watch("vera"); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch("vera"); errs.Code(err) != codes.ResourceExhausted || errs.From(err).Reason != limits.ReasonWatches {
		t.Errorf("third watch: %v", err)
	}
	// Three connections of vera are open now.
	if err := watch("vera"); errs.Code(err) != codes.ResourceExhausted {
		t.Errorf("fourth connection: %v", err)
	}
	if err := watch("victor"); err != nil {
		t.Errorf("somebody else: %v", err)
	}
}
