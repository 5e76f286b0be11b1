package bench

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestResultHasTheAgreedForm(t *testing.T) {
	r := &Result{Bench: "b", Commit: "c", Machine: Machine{CPUs: 2, Kernel: "k", Load: 1.5}, Targets: []Target{}}
	r.Note("for people only")
	rates := []float64{30, 10, 20}
	r.Add("case", "rate", "/s", rates)
	r.Compare("other", rates, []float64{10, 10, 10})
	r.Compare("absent", rates, nil)
	r.Targets = append(r.Targets, Target{Name: "t", Want: ">= 1", Got: 2, Met: true})
	var out bytes.Buffer
	if err := r.JSON(&out); err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	const form = `{"bench": "b", "commit": "c", "machine": {"cpus": 2, "kernel": "k", "load": 1.5},
		"rows": [{"case": "case", "metric": "rate", "unit": "/s", "n": 3, "min": 10, "median": 20, "max": 30, "ratio": {"other": 2}}],
		"targets": [{"name": "t", "want": ">= 1", "got": 2, "met": true}]}`
	if err := json.Unmarshal([]byte(form), &want); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestRatioComparesRoundsWithTheirOwn(t *testing.T) {
	// The machine was slow in the second round, for both.
	if got, ok := ratioOf([]float64{100, 10, 90}, []float64{50, 5, 45}); !ok || got != 2 {
		t.Errorf("got %v %v, want 2", got, ok)
	}
	if _, ok := ratioOf([]float64{1}, []float64{0}); ok {
		t.Error("a ratio to nothing")
	}
}

func TestPercentile(t *testing.T) {
	s := []float64{5, 1, 4, 2, 3}
	for p, want := range map[float64]float64{50: 3, 95: 5, 20: 1, 21: 2} {
		if got := percentile(s, p); got != want {
			t.Errorf("p%v is %v, want %v", p, got, want)
		}
	}
	if got := percentile(nil, 50); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}
