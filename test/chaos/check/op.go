package check

import "math"

// Kind of an operation on a register.
type Kind string

// The kinds. Get is a linearizable read; Stale reads one server's own state.
const (
	Put   Kind = "put"
	CAS   Kind = "cas"
	Get   Kind = "get"
	Stale Kind = "stale"
)

// Outcome of an operation as its caller knows it.
type Outcome string

// The outcomes. An operation that certainly had no effect (it was never sent,
// or was refused for a reason that is not about its key) is Failed and proves
// nothing.
const (
	OK       Outcome = "ok"
	Conflict Outcome = "conflict"
	Unknown  Outcome = "unknown"
	Failed   Outcome = "failed"
)

// Never is the return time of an operation whose outcome is unknown: it may
// take effect at any time after its call.
const Never = math.MaxInt64

// Op is one operation on one register: a configuration key, or the existence
// of an intercept.
type Op struct {
	Client int     `json:"client"`
	Server int     `json:"server"` // that gave the answer
	Kind   Kind    `json:"kind"`
	Key    string  `json:"key"`
	Value  string  `json:"value,omitempty"`  // written or read; "": absent
	Expect string  `json:"expect,omitempty"` // CAS: what the expected revision held; "": absent
	IfRev  uint64  `json:"ifRev,omitempty"`  // CAS: the expected revision
	Rev    uint64  `json:"rev,omitempty"`    // modify revision that was written or read; 0: not known, or absent
	State  uint64  `json:"state,omitempty"`  // reads: revision of the state that answered
	Call   int64   `json:"call"`
	Return int64   `json:"return"`
	Result Outcome `json:"result"`
	// Tries is how often it was sent, under one request number.
	Tries int    `json:"tries,omitempty"`
	Error string `json:"error,omitempty"`
}

func (o Op) writes() bool { return o.Kind == Put || o.Kind == CAS }

// Repeat is a write that was sent again, under the same request number, after
// it had been acknowledged.
type Repeat struct {
	Key string `json:"key"`
	// First and Second are the revisions of the two answers; Error is set when
	// the second was a refusal.
	First  uint64 `json:"first"`
	Second uint64 `json:"second,omitempty"`
	Error  string `json:"error,omitempty"`
}
