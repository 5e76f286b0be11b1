package replica

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLimit bounds every wait for something that must happen.
const testLimit = 30 * time.Second

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	return ctx
}

// put is a command that writes a configuration key.
func put(key string, value []byte) *commandv1.Command {
	return &commandv1.Command{
		Version: fsm.CommandVersion,
		Op:      &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: key, Value: value}},
	}
}

// eventually polls what gives no event to wait for.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	limit := time.NewTimer(testLimit)
	defer limit.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("gave up after %s: %s", testLimit, what)
		}
	}
}
