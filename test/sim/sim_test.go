package sim

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// enoughSeeds is how many runs are sure to have seen everything.
const enoughSeeds = 60

// TestManager runs seeds for a while. The environment may say which and how
// many:
//
//	TRIVET_SIM_SEED=n      begin with seed n; "fresh": with one never used before
//	TRIVET_SIM_SEEDS=n     run n seeds, however long that takes
//	TRIVET_SIM_FOR=10m     run for ten minutes
//	TRIVET_SIM_FAULTS=n    no more than n faults each, as a report of a failure says
//	TRIVET_SIM_TRACE=1     print everything that happens
func TestManager(t *testing.T) {
	b := budgetOf(t)
	t.Logf("from seed %d on", b.first)
	var (
		next  atomic.Uint64
		mu    sync.Mutex
		total Counts
		runs  int
		wg    sync.WaitGroup
	)
	began := time.Now()
	for range b.workers {
		wg.Go(func() {
			g := NewRig()
			for {
				n := next.Add(1) - 1
				if b.over(n, time.Since(began)) || t.Failed() {
					return
				}
				o := Options{Seed: b.first + n, Faults: b.faults, Trace: b.trace}
				r := g.Run(o)
				mu.Lock()
				total.Add(r.Counts)
				runs++
				mu.Unlock()
				if r.Failure != "" {
					reportFailure(t, g, o, r)
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	t.Logf("%d runs, %.0f interleavings per second: %s", runs, float64(total.Steps)/took.Seconds(), &total)
	if missing := total.Missing(); runs >= enoughSeeds && len(missing) > 0 {
		t.Errorf("%d runs without %s: they prove nothing about that", runs, strings.Join(missing, ", "))
	}
}

// reportFailure says what failed, in the shortest form in which it does, and how to
// see it again.
func reportFailure(t *testing.T, g *Rig, o Options, r Result) {
	t.Helper()
	o.Trace = nil
	o, r = g.Shrink(o, r)
	t.Errorf("seed %d: %s\nthe last of what happened:\n%s\nagain: TRIVET_SIM_SEED=%d TRIVET_SIM_FAULTS=%d TRIVET_SIM_SEEDS=1 TRIVET_SIM_TRACE=1 go test -run TestManager -v ./test/sim",
		o.Seed, r.Failure, strings.Join(r.Last, "\n"), o.Seed, o.Faults)
}

// budget is which seeds are run.
type budget struct {
	first   uint64
	seeds   uint64        // 0: as many as fit into the time
	time    time.Duration // 0: as long as it takes
	faults  int
	workers int
	trace   func(string)
}

func (b budget) over(n uint64, took time.Duration) bool {
	return b.seeds > 0 && n >= b.seeds || b.time > 0 && took >= b.time
}

func budgetOf(t *testing.T) budget {
	t.Helper()
	b := budget{first: 1, time: 20 * time.Second, workers: runtime.GOMAXPROCS(0)}
	if testing.Short() {
		b.time = 3 * time.Second
	}
	number := func(name string) uint64 {
		n, err := strconv.ParseInt(os.Getenv(name), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return uint64(n)
	}
	switch os.Getenv("TRIVET_SIM_SEED") {
	case "":
	case "fresh":
		b.first = uint64(time.Now().UnixNano())
	default:
		b.first = number("TRIVET_SIM_SEED")
	}
	if os.Getenv("TRIVET_SIM_SEEDS") != "" {
		b.seeds, b.time = number("TRIVET_SIM_SEEDS"), 0
	}
	if s := os.Getenv("TRIVET_SIM_FOR"); s != "" {
		var err error
		if b.time, err = time.ParseDuration(s); err != nil {
			t.Fatalf("TRIVET_SIM_FOR: %v", err)
		}
	}
	if os.Getenv("TRIVET_SIM_FAULTS") != "" {
		b.faults = int(number("TRIVET_SIM_FAULTS"))
	}
	if os.Getenv("TRIVET_SIM_TRACE") != "" {
		b.workers = 1
		b.trace = func(line string) { fmt.Println(line) }
	}
	return b
}

// TestEqualSeedsGiveEqualRuns: on another rig, and after other runs.
func TestEqualSeedsGiveEqualRuns(t *testing.T) {
	t.Parallel()
	a, b := NewRig(), NewRig()
	hashes := make(map[uint64]bool)
	for _, o := range []Options{{Seed: 1, until: 40 * time.Second}, {Seed: 2, Chaos: 3 * time.Second}} {
		first := a.Run(o)
		b.Run(Options{Seed: 1000, until: 3 * time.Second})
		second := b.Run(o)
		o.Trace = func(string) {}
		third := b.Run(o)
		for _, r := range []Result{second, third} {
			if r.Hash != first.Hash || r.Counts != first.Counts {
				t.Errorf("seed %d: %x with %v, then %x with %v", o.Seed, first.Hash, &first.Counts, r.Hash, &r.Counts)
			}
		}
		hashes[first.Hash] = true
	}
	if len(hashes) != 2 {
		t.Errorf("different seeds gave %d different runs", len(hashes))
	}
}

// planted are the deliberate bugs, what each is to be found by, and within how
// many seeds.
var planted = []struct {
	bug    Bug
	says   string
	within uint64
	chaos  time.Duration
	until  time.Duration
}{
	{AckEarly, "the write is lost", 60, time.Minute, 0},
	{NoDedupe, "and again as", 5, time.Minute, 0},
	{LoseHints, "at rest", 20, 10 * time.Second, 0},
	{ExpireEarly, "too early", 5, time.Minute, 0},
	{NoFence, "took effect in term", 100, time.Minute, 0},
	{SkipEvent, "watch", 5, time.Minute, 0},
	{LoseEntry, "another", 20, time.Minute, 0},
	{VoteForOld, "committed", 20, time.Minute, 0},
	{StickyOwner, "its owner is away", 20, 10 * time.Second, 0},
	{DeafLeader, "a keepalive was answered, too early", 40, 100 * time.Second, 100 * time.Second},
}

func TestPlantedViolationsAreFound(t *testing.T) {
	if len(planted) != int(bugs)-1 {
		t.Errorf("%d of %d bugs are planted", len(planted), bugs-1)
	}
	for _, p := range planted {
		t.Run(p.bug.String(), func(t *testing.T) {
			t.Parallel()
			g := NewRig()
			var steps uint64
			for seed := range p.within {
				r := g.Run(Options{Seed: seed, Plant: p.bug, Chaos: p.chaos, until: p.until})
				steps += r.Steps
				if r.Failure == "" {
					continue
				}
				t.Logf("seed %d, after %d steps in all: %s", seed, steps, r.Failure)
				if !strings.Contains(r.Failure, p.says) {
					t.Errorf("it was found as something else than %q", p.says)
				}
				if len(r.Last) == 0 {
					t.Error("there is no trace")
				}
				return
			}
			t.Errorf("not found within %d seeds, %d steps", p.within, steps)
		})
	}
}

func TestShrinkKeepsTheFailure(t *testing.T) {
	t.Parallel()
	g := NewRig()
	o := Options{Plant: VoteForOld, Chaos: 20 * time.Second}
	r := g.Run(o)
	for ; r.Failure == ""; r = g.Run(o) {
		if o.Seed++; o.Seed == 20 {
			t.Fatal("nothing to shrink")
		}
	}
	small, again := g.Shrink(o, r)
	if again.Failure == "" || again.Faults > r.Faults {
		t.Errorf("from %d faults to %d: %q", r.Faults, again.Faults, again.Failure)
	}
	if repeated := g.Run(small); repeated.Hash != again.Hash {
		t.Error("the shrunk run does not replay")
	}
}

func TestWithoutFaultsNothingIsLost(t *testing.T) {
	t.Parallel()
	r := NewRig().Run(Options{Seed: 1, Faults: -1, Chaos: 30 * time.Second})
	if r.Failure != "" || r.Counts.Faults != 0 || r.Acked == 0 {
		t.Errorf("%q with %v", r.Failure, &r.Counts)
	}
}
