package chaos_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/test/chaos"
	"trivet/test/chaos/chaostest"
)

// TestSmoke is a short run of four kinds of faults. Its seed is fresh; it is
// printed, and the run is kept, when something is wrong.
func TestSmoke(t *testing.T) {
	if err := chaos.Possible(); err != nil {
		t.Skipf("SKIP reason: %v", err)
	}
	defer goleak.VerifyNone(t)
	exe := chaostest.Binary(t, chaos.Tags)
	dir, err := os.MkdirTemp("", "trivet-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	var log strings.Builder
	res, err := chaos.Execute(t.Context(), chaos.Options{
		Exe: exe, Dir: dir, Seed: seed, Duration: 12 * time.Second, Progress: &log,
		Faults: []string{"kill", "stop", "partition", "loss"},
	})
	if err != nil {
		t.Fatalf("seed %d, directory %s: %v\n%s", seed, dir, err, &log)
	}
	if !res.Clean() {
		var text strings.Builder
		res.Text(&text)
		t.Fatalf("%s%s", &log, &text)
	}
	if len(res.Steps) < 2 {
		t.Errorf("only %d faults in %s", len(res.Steps), res.Took)
	}
	if err := os.RemoveAll(filepath.Clean(dir)); err != nil {
		t.Error(err)
	}
	t.Logf("%d faults, %d writes, seed %d", len(res.Steps), res.Ops["put"].OK+res.Ops["cas"].OK, seed)
}
