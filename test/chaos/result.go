package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"trivet/test/chaos/check"
	"trivet/test/chaos/load"
)

const (
	// perKey bounds the search for an order of the operations on one key.
	perKey = 20 * time.Second
	// uncheckedShare is how many of the keys may be without a verdict.
	uncheckedShare = 0.02
	// leastRate is how many acknowledged writes per second the whole run must
	// have had, faults and all; far below what an idle machine does.
	leastRate = 5
)

// StepResult is what became of a step.
type StepResult struct {
	Step
	// Server is the target that was chosen.
	Server string `json:"server,omitempty"`
	// At is when it began, nanoseconds of the run.
	At int64 `json:"atNs"`
	// Evidence proves that the fault happened.
	Evidence []string `json:"evidence"`
	// Outage is the time from the beginning to the first acknowledged write
	// that was called after it; 0: not looked at.
	Outage time.Duration `json:"outageNs"`
	// Whole is how long after its end all servers were a whole.
	Whole time.Duration `json:"wholeNs"`
	// Error says why the step does not count.
	Error string `json:"error,omitempty"`
}

// Verdict of one checker.
type Verdict struct {
	Checker string `json:"checker"`
	// Judged says how much was looked at, Unchecked how much could not be.
	Judged     int               `json:"judged"`
	Unchecked  int               `json:"unchecked,omitempty"`
	Violations []check.Violation `json:"violations,omitempty"`
}

// Result of a run.
type Result struct {
	Seed     uint64                `json:"seed"`
	Plant    string                `json:"plant,omitempty"`
	Dir      string                `json:"dir"`
	Took     time.Duration         `json:"tookNs"`
	LeftOut  []string              `json:"leftOut,omitempty"`
	Faults   map[string]int        `json:"faults"`
	Steps    []StepResult          `json:"steps"`
	Ops      map[string]load.Count `json:"operations"`
	Verdicts []Verdict             `json:"verdicts"`
	// Unexpected are answers that no fault explains.
	Unexpected []string `json:"unexpected,omitempty"`
	// Longest is the longest time without an acknowledged write.
	Longest time.Duration `json:"longestNs"`
	// Idle is set when less work was done than proves anything.
	Idle string `json:"idle,omitempty"`
}

// verdict runs all checkers.
func (r *Result) verdict(h *load.History, states []check.State) {
	r.Ops, r.Unexpected = h.Counts, h.Unexpected
	linear := check.Linearizable(h.Ops, perKey)
	add := func(checker string, judged, unchecked int, v []check.Violation) {
		r.Verdicts = append(r.Verdicts, Verdict{Checker: checker, Judged: judged, Unchecked: unchecked, Violations: v})
	}
	if n := len(linear.Unchecked); float64(n) > uncheckedShare*float64(linear.Keys) {
		linear.Violations = append(linear.Violations, check.Violation{
			Checker: "linearizable", What: fmt.Sprintf("%d of %d keys took longer than %s each: nothing is known of them", n, linear.Keys, perKey),
		})
	}
	batches, changes := 0, 0
	for _, s := range h.Streams {
		batches += len(s.Batches)
		for _, b := range s.Batches {
			changes += len(b.Changes)
		}
	}
	add("linearizable", linear.Ops, len(linear.Unchecked), linear.Violations)
	add("revisions", len(h.Ops), 0, check.Revisions(h.Ops))
	add("one winner", r.Ops["cas"].OK, 0, check.Winners(h.Ops))
	add("exactly once", len(h.Repeats), 0, check.Repeats(h.Repeats))
	add("acknowledged writes", r.Ops["put"].OK+r.Ops["cas"].OK, 0, check.Lost(h.Ops, states))
	add("watch", changes, 0, check.Streams(h.Streams, "config", h.Ops))
	add("snapshots", len(h.Sets), 0, check.Sets(h.Sets))
	add("expiry", len(h.Lives), 0, check.Expiry(h.Lives))
	add("digests", len(states), 0, check.Same(states))
	if done, want := r.Ops["put"].OK+r.Ops["cas"].OK, int(leastRate*r.Took.Seconds()); done < want {
		r.Idle = fmt.Sprintf("%d writes were acknowledged in %s, %d would prove something", done, r.Took.Round(time.Second), want)
	}
	for _, v := range r.Verdicts {
		if v.Judged == 0 {
			r.Idle = strings.TrimPrefix(r.Idle+"; "+v.Checker+" had nothing to judge", "; ")
		}
	}
}

// Violations are those of all checkers.
func (r *Result) Violations() []check.Violation {
	var out []check.Violation
	for _, v := range r.Verdicts {
		out = append(out, v.Violations...)
	}
	return out
}

// Failures are the reasons why the run proves nothing or too little: faults
// that did not happen, phases without work, unexpected answers.
func (r *Result) Failures() []string {
	var out []string
	for _, s := range r.Steps {
		if s.Error != "" {
			out = append(out, fmt.Sprintf("%s at %s: %s", s.Step, s.Server, s.Error))
		}
	}
	out = append(out, r.Unexpected...)
	if r.Idle != "" {
		out = append(out, r.Idle)
	}
	return out
}

// Clean says that the run was judged and everything held.
func (r *Result) Clean() bool {
	return len(r.Verdicts) > 0 && len(r.Violations()) == 0 && len(r.Failures()) == 0
}

// JSON writes the result as JSON.
func (r *Result) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		*Result
		Clean    bool     `json:"clean"`
		Failures []string `json:"failures,omitempty"`
	}{r, r.Clean(), r.Failures()})
}

// Text writes a summary for people.
func (r *Result) Text(w io.Writer) {
	fmt.Fprintf(w, "seed %d, %s\n\nfaults\n", r.Seed, r.Took.Round(time.Second))
	for _, name := range sortedKeys(r.Faults) {
		var outage, whole time.Duration
		for _, s := range r.Steps {
			if s.Fault == name {
				outage, whole = max(outage, s.Outage), max(whole, s.Whole)
			}
		}
		fmt.Fprintf(w, "  %-24s %4d   slowest first write %8s, slowest to be whole %8s\n", name, r.Faults[name],
			outage.Round(time.Millisecond), whole.Round(time.Millisecond))
	}
	if len(r.LeftOut) > 0 {
		fmt.Fprintf(w, "  left out: %s\n", strings.Join(r.LeftOut, ", "))
	}
	fmt.Fprintf(w, "\noperations                      ok  refused   failed  unknown\n")
	for _, name := range sortedKeys(r.Ops) {
		c := r.Ops[name]
		fmt.Fprintf(w, "  %-24s %8d %8d %8d %8d\n", name, c.OK, c.Refused, c.Failed, c.Unknown)
	}
	fmt.Fprintf(w, "  longest time without an acknowledged write: %s\n\nchecks\n", r.Longest.Round(time.Millisecond))
	for _, v := range r.Verdicts {
		fmt.Fprintf(w, "  %-24s %8d judged, %d not checked, %d violations\n", v.Checker, v.Judged, v.Unchecked, len(v.Violations))
	}
	for _, v := range r.Violations() {
		fmt.Fprintf(w, "VIOLATION %s\n", v)
	}
	for _, f := range r.Failures() {
		fmt.Fprintf(w, "FAILURE %s\n", f)
	}
	if r.Clean() {
		fmt.Fprintln(w, "\nclean")
		return
	}
	fmt.Fprintf(w, "\nnot clean; seed %d; everything is in %s\n", r.Seed, r.Dir)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// cutIntercept tells the register of an intercept from a configuration key.
func cutIntercept(key string) (id string, ok bool) {
	return strings.CutPrefix(key, load.InterceptPrefix)
}

// interceptName is what comes after the session in an intercept's id.
func interceptName(id string) string { return id[strings.LastIndexByte(id, ':')+1:] }

// keep copies the data of the servers from their memory disks, for a look at
// it after the run.
func (c *Cluster) keep() error {
	var errs []error
	for _, s := range c.Servers {
		to := filepath.Join(c.Dir, s.Name+".data")
		errs = append(errs, fs.WalkDir(os.DirFS(s.Data), ".", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil || path == ballast:
				return err
			case d.IsDir():
				return os.MkdirAll(filepath.Join(to, path), 0o700)
			}
			raw, err := os.ReadFile(filepath.Join(s.Data, path))
			if errors.Is(err, fs.ErrNotExist) {
				return nil // a running server removes files
			}
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, path), raw, 0o600)
		}))
	}
	return errors.Join(errs...)
}
