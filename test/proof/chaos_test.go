package proof

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"trivet/internal/fault"
	"trivet/test/chaos"
	"trivet/test/chaos/chaostest"
)

const (
	chaosDuration = 15 * time.Minute
	// chaosVariable replaces chaosDuration.
	chaosVariable = "TRIVET_CHAOS_DURATION"
	// findWithin is how long the checkers may take to find a deliberate bug.
	findWithin = 2 * time.Minute
	// findRun is one attempt of it: a run is judged at its end.
	findRun = 25 * time.Second
)

// requireChaos skips what needs a proof's time or cannot run here.
func requireChaos(t *testing.T) {
	t.Helper()
	if os.Getenv("TRIVET_PROOF") != "1" {
		t.Skip("SKIP reason: a long proof, run by make proof (TRIVET_PROOF=1)")
	}
	if err := chaos.Possible(); err != nil {
		t.Skipf("SKIP reason: %v", err)
	}
}

// chaosDir is the directory of a run; it stays unless the run was clean.
func chaosDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "trivet-chaos-")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestChaos disturbs a cluster with all kinds of faults, by a fresh seed.
func TestChaos(t *testing.T) {
	requireChaos(t)
	d := chaosDuration
	if text := os.Getenv(chaosVariable); text != "" {
		var err error
		if d, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", chaosVariable, err)
		}
	}
	o := chaos.Options{
		Exe: chaostest.Binary(t, chaos.Tags), Dir: chaosDir(t), Seed: rand.Uint64(), Duration: d, Progress: os.Stderr,
	}
	t.Logf("seed %d, %s, directory %s", o.Seed, d, o.Dir)
	res, err := chaos.Execute(t.Context(), o)
	if err != nil {
		t.Fatalf("seed %d, directory %s: %v", o.Seed, o.Dir, err)
	}
	var text strings.Builder
	res.Text(&text)
	t.Log(text.String())
	for _, name := range chaos.Kinds() {
		if res.Faults[name] == 0 && d >= chaosDuration {
			t.Errorf("%s did not come in %s", name, d)
		}
	}
	if !res.Clean() {
		t.Fatalf("seed %d was not clean; everything is in %s", o.Seed, o.Dir)
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		t.Error(err)
	}
}

// TestPlantedBugsAreFound builds the servers with deliberate bugs and wants the
// checkers to find each of them. A checker that finds nothing in a sick cluster
// says nothing about a healthy one.
func TestPlantedBugsAreFound(t *testing.T) {
	requireChaos(t)
	exe := chaostest.Binary(t, chaos.PlantedTags)
	for _, bug := range []struct {
		name fault.Bug
		// by are the checkers whose business it is.
		by     []string
		faults []string
	}{
		{fault.AckBeforeCommit, []string{"linearizable", "acknowledged writes", "one winner"}, []string{"kill", "partition"}},
		{fault.StaleRead, []string{"linearizable"}, []string{"partition", "asymmetric", "delay"}},
		{fault.EarlyExpiry, []string{"expiry"}, []string{"client-cut"}},
		{fault.SkippedEvent, []string{"watch"}, []string{"restart", "partition"}},
		{fault.DoubleApply, []string{"exactly once", "linearizable"}, []string{"kill", "stop"}},
	} {
		t.Run(string(bug.name), func(t *testing.T) {
			began := time.Now()
			for attempt := 1; time.Since(began) < findWithin; attempt++ {
				dir := chaosDir(t)
				seed := rand.Uint64()
				res, err := chaos.Execute(t.Context(), chaos.Options{
					Exe: exe, Dir: dir, Seed: seed, Duration: findRun, Faults: bug.faults, Plant: string(bug.name),
				})
				if err != nil {
					t.Logf("attempt %d (seed %d) ended early: %v", attempt, seed, err)
				}
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
				if res == nil {
					continue
				}
				for _, v := range res.Violations() {
					if slices.Contains(bug.by, v.Checker) {
						t.Logf("found after %s, in run %d, seed %d: %s", time.Since(began).Round(time.Second), attempt, seed, v)
						return
					}
				}
			}
			t.Errorf("not found within %s", findWithin)
		})
	}
}
