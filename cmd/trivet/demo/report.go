package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// Report is what `trivet demo --json` prints.
type Report struct {
	Steps []Step `json:"steps"`
	// LeaderFailoverMs is the time from the SIGKILL of the leader to the first
	// acknowledged write.
	LeaderFailoverMs float64 `json:"leaderFailoverMs"`
	// RequestsTotal counts the visitor's requests, RequestsFailed those that
	// got no answer or the wrong one. Requests that were under way on the
	// killed server when it died are counted apart.
	RequestsTotal        int    `json:"requestsTotal"`
	RequestsFailed       int    `json:"requestsFailed"`
	RequestsInFlightLost int    `json:"requestsInFlightLost"`
	StealBackend         string `json:"stealBackend"`
	OK                   bool   `json:"ok"`
}

// Step is one thing that was shown.
type Step struct {
	Name   string  `json:"name"`
	OK     bool    `json:"ok"`
	Detail string  `json:"detail"`
	Ms     float64 `json:"ms"`
	// Skipped says that the step could not be shown here; Detail says why.
	Skipped bool `json:"skipped,omitempty"`
}

func (s Step) verdict() string {
	switch {
	case s.Skipped:
		return "skipped"
	case s.OK:
		return "ok"
	}
	return "FAILED"
}

// JSON writes the report as one object.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Table writes the report for people.
func (r *Report) Table(w io.Writer) {
	width := 4
	for _, s := range r.Steps {
		width = max(width, len(s.Name))
	}
	fmt.Fprintf(w, "\n%-*s  %-7s  %9s  %s\n", width, "STEP", "RESULT", "TIME", "WHAT WAS SEEN")
	for _, s := range r.Steps {
		fmt.Fprintf(w, "%-*s  %-7s  %9s  %s\n", width, s.Name, s.verdict(), ms(s.Ms), s.Detail)
	}
	fmt.Fprintf(w, "\nrequests: %d sent, %d failed, %d lost in flight on the killed server; leader failover: %s\n",
		r.RequestsTotal, r.RequestsFailed, r.RequestsInFlightLost, ms(r.LeaderFailoverMs))
	if r.OK {
		fmt.Fprintln(w, "everything that was shown held")
	} else {
		fmt.Fprintln(w, "NOT everything that was shown held")
	}
}

func ms(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.2f s", v/1000)
	}
	return fmt.Sprintf("%.1f ms", v)
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
