package bench

import (
	"encoding/json"
	"fmt"
	"io"
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
	Command string   `json:"command"`
	Machine Machine  `json:"machine"`
	Rows    []Row    `json:"rows"`
	Targets []Target `json:"targets"`
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
	Case   string             `json:"case"`
	Metric string             `json:"metric"`
	Unit   string             `json:"unit"`
	N      int                `json:"n"`
	Min    float64            `json:"min"`
	Median float64            `json:"median"`
	Max    float64            `json:"max"`
	Ratio  map[string]float64 `json:"ratio,omitempty"`
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
		Bench: bench, Commit: build.Commit(), Command: strings.Join(os.Args, " "),
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
	fmt.Fprintf(w, "%-36s %-24s %4s %10s %10s %10s  %s\n", "CASE", "METRIC", "N", "MIN", "MEDIAN", "MAX", "UNIT")
	for _, x := range r.Rows {
		fmt.Fprintf(w, "%-36s %-24s %4d %10.2f %10.2f %10.2f  %s\n", x.Case, x.Metric, x.N, x.Min, x.Median, x.Max, x.Unit)
	}
	for _, t := range r.Targets {
		verdict := "missed"
		if t.Met {
			verdict = "met"
		}
		fmt.Fprintf(w, "target %s: want %s, got %.2f: %s\n", t.Name, t.Want, t.Got, verdict)
	}
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
