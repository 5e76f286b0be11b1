package system

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/systest"
)

// TestRollingUpgrade replaces the program of one server after the other while
// writes go on. What only the newer program knows is refused until the last one
// has it, no acknowledged write is lost, and the servers agree at the end.
func TestRollingUpgrade(t *testing.T) {
	c := systest.StartServersOf(t, systest.OlderBinary(t))
	ctx := systest.Deadline(t, 3*time.Minute)
	writes := writeOn(ctx, t, c)
	for i, server := range c.Dev.Servers {
		if err := setLimits(ctx, c, i); errs.Code(err) != codes.FailedPrecondition || errs.From(err).Reason != "UPGRADE_IN_PROGRESS" {
			t.Errorf("with %d servers upgraded, a new operation: %v", i, err)
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		server.Use(systest.Binary(t))
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Dev.WaitReady(ctx, i); err != nil {
			t.Fatalf("the newer %s: %v", server.Name, err)
		}
	}
	systest.Eventually(t, 30*time.Second, "a new operation is taken", func() error { return setLimits(ctx, c, 0) })
	acked := writes()
	if acked < 20 {
		t.Errorf("only %d writes were acknowledged", acked)
	}
	for i, op := range c.Ops.Clients {
		lctx := metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable")
		for n := range acked {
			if _, err := op.GetConfig(lctx, &operatorv1.GetConfigRequest{Key: key(n)}); err != nil {
				t.Fatalf("server %d has lost an acknowledged write: %v", i, err)
			}
		}
	}
	if _, err := c.Ops.SameState(ctx); err != nil {
		t.Error(err)
	}
}

func key(n int) string { return fmt.Sprintf("write-%05d", n) }

func setLimits(ctx context.Context, c *systest.Cluster, i int) error {
	_, err := c.Ops.Clients[i].SetLimits(ctx, &operatorv1.SetLimitsRequest{Limits: &commandv1.Limits{Tokens: 5000}})
	return err
}

// writeOn writes keys one after the other, each until it is acknowledged, by
// whatever server takes it. The returned function stops that and says how many
// were.
func writeOn(ctx context.Context, t *testing.T, c *systest.Cluster) func() int {
	wctx, cancel := context.WithCancel(ctx)
	acked := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for wctx.Err() == nil {
			for try := 0; wctx.Err() == nil; try++ {
				cctx, cancel := context.WithTimeout(wctx, 2*time.Second)
				_, err := c.Ops.Clients[try%len(c.Ops.Clients)].PutConfig(cctx, &operatorv1.PutConfigRequest{Key: key(acked), Value: []byte("v")})
				cancel()
				if err == nil {
					acked++
					break
				}
			}
		}
	}()
	stop := func() int {
		cancel()
		<-done
		return acked
	}
	t.Cleanup(func() { stop() })
	return stop
}
