package chaos

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func draw(seed uint64, n int) []Step {
	s := newScheduler(seed, kinds())
	var out []Step
	for range n {
		out = append(out, s.next())
	}
	return out
}

func TestScheduleFollowsFromItsSeed(t *testing.T) {
	n := 3 * len(kinds())
	first := draw(1, n)
	if d := cmp.Diff(first, draw(1, n)); d != "" {
		t.Errorf("the same seed gave another schedule (-first +second):\n%s", d)
	}
	if cmp.Equal(first, draw(2, n)) {
		t.Error("another seed gave the same schedule")
	}
	times := make(map[string]int)
	for _, s := range first {
		times[s.Fault]++
	}
	for _, name := range Kinds() {
		if times[name] != 3 {
			t.Errorf("%s comes %d times in %d steps, want 3", name, times[name], n)
		}
	}
}

func TestScheduleCanBeReplayed(t *testing.T) {
	want := draw(3, 10)
	path := filepath.Join(t.TempDir(), "schedule.jsonl")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	enc := json.NewEncoder(f)
	for _, s := range want {
		if err := enc.Encode(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := steps(Options{Replay: path}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []Step
	for s, more := next(); more; s, more = next() {
		got = append(got, s)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("replayed (-want +got):\n%s", d)
	}
}

func TestOptionsThatMakeNoSense(t *testing.T) {
	for name, o := range map[string]Options{
		"nothing":          {},
		"no duration":      {Exe: "trivet", Dir: "x"},
		"an unknown fault": {Exe: "trivet", Dir: "x", Duration: 1, Faults: []string{"earthquake"}},
	} {
		if err := o.validate(); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := Execute(t.Context(), Options{Plant: "moth"}); err == nil {
		t.Error("an unknown bug was planted")
	}
}
