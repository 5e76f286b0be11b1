// Package check judges what a chaos run recorded. Every checker is a pure
// function over a history: it asks nobody and changes nothing, so that each is
// tested on a history with a planted violation and on a clean one, and a
// recorded run can be judged again.
//
// Times are nanoseconds since the beginning of the run, by one monotonic
// clock. Values that writers write are unique over the whole run.
package check

import "fmt"

// Violation is one thing that must not have happened.
type Violation struct {
	// Checker names the rule, such as "linearizable".
	Checker string `json:"checker"`
	// What says what was seen and why it is wrong.
	What string `json:"what"`
}

// String returns checker: what.
func (v Violation) String() string { return v.Checker + ": " + v.What }

// report collects violations of one checker and stops at a number that a
// reader can take in.
type report struct {
	checker string
	found   []Violation
	more    int
}

const maxViolations = 20

func (r *report) add(format string, args ...any) {
	if len(r.found) == maxViolations {
		r.more++
		return
	}
	r.found = append(r.found, Violation{Checker: r.checker, What: fmt.Sprintf(format, args...)})
}

func (r *report) violations() []Violation {
	if r.more > 0 {
		return append(r.found, Violation{Checker: r.checker, What: fmt.Sprintf("and %d more", r.more)})
	}
	return r.found
}
