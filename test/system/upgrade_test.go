package system

import (
	"context"
	"fmt"
	"sync/atomic"
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
	newer := systest.Binary(t)
	c := systest.StartServersOf(t, systest.OlderBinary(t))
	ctx := systest.Deadline(t, 3*time.Minute)
	writes := writeOn(ctx, t, c)
	for i, server := range c.Dev.Servers {
		goOn(t, writes)
		if err := setLimits(ctx, c, i); errs.Code(err) != codes.FailedPrecondition || errs.From(err).Reason != "UPGRADE_IN_PROGRESS" {
			t.Errorf("with %d servers upgraded, a new operation: %v", i, err)
		}
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		server.Use(newer)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.Dev.WaitReady(ctx, i); err != nil {
			t.Fatalf("the newer %s: %v", server.Name, err)
		}
	}
	systest.Eventually(t, 30*time.Second, "a new operation is taken", func() error { return setLimits(ctx, c, 0) })
	goOn(t, writes)
	acked := writes.stop()
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

// goOn waits until more writes are acknowledged than before: the servers as
// they are now take them.
func goOn(t *testing.T, w *keyWriter) {
	t.Helper()
	want := w.acked.Load() + 20
	systest.Eventually(t, 30*time.Second, "writes are acknowledged", func() error {
		if n := w.acked.Load(); n < want {
			return fmt.Errorf("%d of %d are", n, want)
		}
		return nil
	})
}

// keyWriter writes keys one after the other, each until it is acknowledged, to a
// server for as long as that takes them and to the next one then.
type keyWriter struct {
	acked atomic.Int64
	end   context.CancelFunc
	done  chan struct{}
}

func writeOn(ctx context.Context, t *testing.T, c *systest.Cluster) *keyWriter {
	wctx, cancel := context.WithCancel(ctx)
	w := &keyWriter{end: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for server := 0; wctx.Err() == nil; {
			op := c.Ops.Clients[server%len(c.Ops.Clients)]
			cctx, cancel := context.WithTimeout(wctx, 2*time.Second)
			_, err := op.PutConfig(cctx, &operatorv1.PutConfigRequest{Key: key(int(w.acked.Load())), Value: []byte("v")})
			cancel()
			if err == nil {
				w.acked.Add(1)
			} else {
				server++
			}
		}
	}()
	t.Cleanup(func() { w.stop() })
	return w
}

// stop ends the writing and says how many were acknowledged.
func (w *keyWriter) stop() int {
	w.end()
	<-w.done
	return int(w.acked.Load())
}
