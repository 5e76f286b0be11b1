package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"trivet/internal/build"
)

// Result is what a bench prints with -o json.
type Result struct {
	Bench   string   `json:"bench"`
	Commit  string   `json:"commit"`
	Machine Machine  `json:"machine"`
	Rows    []Row    `json:"rows"`
	Targets []Target `json:"targets"`

	// Notes say what was left out and why, and how the stores were set up. They
	// are for people: the table shows them.
	Notes []string `json:"-"`
}

// Machine says where it ran.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Kernel string `json:"kernel"`
	// Load is the one-minute load average at the start.
	Load float64 `json:"load"`
}

// Row is one case and metric.
type Row struct {
	Case   string  `json:"case"`
	Metric string  `json:"metric"`
	Unit   string  `json:"unit"`
	N      int     `json:"n"`
	Min    float64 `json:"min"`
	Median float64 `json:"median"`
	Max    float64 `json:"max"`
	// Ratio is the median to that of a baseline, by its name: the median over
	// the rounds of this figure by the baseline's of the same round.
	Ratio map[string]float64 `json:"ratio,omitempty"`
}

// Target compares a figure with what the design asks for.
type Target struct {
	Name string  `json:"name"`
	Want string  `json:"want"`
	Got  float64 `json:"got"`
	Met  bool    `json:"met"`
}

// NewResult starts a result.
func NewResult(bench string) *Result {
	return &Result{
		Bench: bench, Commit: build.Commit(), Rows: []Row{}, Targets: []Target{},
		Machine: Machine{CPUs: runtime.NumCPU(), Kernel: kernel(), Load: loadAverage()},
	}
}

// Add adds a row over samples.
func (r *Result) Add(name, metric, unit string, samples []float64) Row {
	s := slices.Sorted(slices.Values(samples))
	row := Row{Case: name, Metric: metric, Unit: unit, N: len(s)}
	if len(s) > 0 {
		row.Min, row.Median, row.Max = round(s[0]), round(median(s)), round(s[len(s)-1])
	}
	r.Rows = append(r.Rows, row)
	return row
}

// Compare adds to the last row the ratio of its samples to a baseline's of the
// same rounds. Without samples of the baseline nothing is added.
func (r *Result) Compare(baseline string, samples, base []float64) {
	ratio, ok := ratioOf(samples, base)
	if !ok {
		return
	}
	row := &r.Rows[len(r.Rows)-1]
	if row.Ratio == nil {
		row.Ratio = make(map[string]float64)
	}
	row.Ratio[baseline] = ratio
}

// Note adds a note.
func (r *Result) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// ratioOf is the median of the rounds' ratios: what disturbed one round
// disturbed both sides of it.
func ratioOf(samples, base []float64) (float64, bool) {
	var ratios []float64
	for i := range min(len(samples), len(base)) {
		if base[i] > 0 {
			ratios = append(ratios, samples[i]/base[i])
		}
	}
	if len(ratios) == 0 {
		return 0, false
	}
	slices.Sort(ratios)
	return round(median(ratios)), true
}

// percentile of samples, by the nearest rank.
func percentile(samples []float64, p float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	if len(s) == 0 {
		return 0
	}
	return round(s[min(len(s)-1, int(math.Ceil(p/100*float64(len(s))))-1)])
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

func round(v float64) float64 { return math.Round(v*100) / 100 }

// JSON writes the result as one object.
func (r *Result) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Table writes the result for people.
func (r *Result) Table(w io.Writer) {
	fmt.Fprintf(w, "%s, commit %s, %d CPUs, kernel %s, load %.2f\n", r.Bench, r.Commit, r.Machine.CPUs, r.Machine.Kernel, r.Machine.Load)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
	width := len("CASE")
	for _, x := range r.Rows {
		width = max(width, len(x.Case))
	}
	fmt.Fprintf(w, "%-*s  %-24s %4s %10s %10s %10s  %-6s %s\n", width, "CASE", "METRIC", "N", "MIN", "MEDIAN", "MAX", "UNIT", "RATIO")
	for _, x := range r.Rows {
		line := fmt.Sprintf("%-*s  %-24s %4d %10.2f %10.2f %10.2f  %-6s %s", width, x.Case, x.Metric, x.N, x.Min, x.Median, x.Max, x.Unit, x.ratios())
		fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
	for _, t := range r.Targets {
		verdict := "missed"
		if t.Met {
			verdict = "met"
		}
		fmt.Fprintf(w, "target %s: want %s, got %.2f: %s\n", t.Name, t.Want, t.Got, verdict)
	}
}

func (x Row) ratios() string {
	var out []string
	for _, base := range slices.Sorted(maps.Keys(x.Ratio)) {
		out = append(out, fmt.Sprintf("%.2f x %s", x.Ratio[base], base))
	}
	return strings.Join(out, ", ")
}

func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func loadAverage() float64 {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(raw), " ")
	v, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return v
}
