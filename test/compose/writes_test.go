package compose

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/test/systest"
)

const (
	writers = 2
	// think is a writer's pause between two writes.
	think = 40 * time.Millisecond
	// writeTime bounds one write; a client that got no answer asks elsewhere.
	writeTime = 10 * time.Second
	// resume is how long it may take until writes are acknowledged after a
	// server is lost, far above what it takes on an idle machine.
	resume = 30 * time.Second
)

// writes are configuration keys that are written all the time, each once.
type writes struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	acked []string // guarded by mu; keys whose write was acknowledged
	epoch int      // guarded by mu
	since int      // guarded by mu; acknowledged of those begun in this epoch
}

// startWrites starts the writers; they end with the test.
func startWrites(t testing.TB, api operatorsvc.OperatorClient) *writes {
	ctx, cancel := context.WithCancel(context.Background())
	w := &writes{stop: cancel}
	for n := range writers {
		w.wg.Go(func() { w.write(ctx, api, n) })
	}
	t.Cleanup(w.end)
	return w
}

func (w *writes) end() {
	w.stop()
	w.wg.Wait()
}

func (w *writes) write(ctx context.Context, api operatorsvc.OperatorClient, writer int) {
	tick := time.NewTicker(think)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		key := fmt.Sprintf("write-%d-%d", writer, n)
		w.mu.Lock()
		epoch := w.epoch
		w.mu.Unlock()
		call, cancel := context.WithTimeout(ctx, writeTime)
		_, err := api.PutConfig(call, &operatorv1.PutConfigRequest{Key: key, Value: []byte(key)})
		cancel()
		if err != nil {
			continue // nothing was promised
		}
		w.mu.Lock()
		w.acked = append(w.acked, key)
		if epoch == w.epoch {
			w.since++
		}
		w.mu.Unlock()
	}
}

// goOn waits until a number of writes was acknowledged that began after the
// call.
func (w *writes) goOn(t testing.TB, when string) {
	t.Helper()
	const want = 20
	w.mu.Lock()
	w.epoch++
	w.since = 0
	w.mu.Unlock()
	systest.Eventually(t, resume, "writes are acknowledged "+when, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.since < want {
			return fmt.Errorf("only %d of %d", w.since, want)
		}
		return nil
	})
}

// kept ends the writers and checks that a server has every write that was
// acknowledged.
func (w *writes) kept(t testing.TB, server string, api operatorsvc.OperatorClient) {
	t.Helper()
	w.end()
	ctx := metadata.AppendToOutgoingContext(systest.Deadline(t, settle), engine.MetaConsistency, "linearizable")
	for _, key := range w.acked {
		got, err := api.GetConfig(ctx, &operatorv1.GetConfigRequest{Key: key})
		if err != nil || string(got.GetValue()) != key {
			t.Fatalf("%s lost the acknowledged write of %s: %q, %v", server, key, got.GetValue(), err)
		}
	}
}
