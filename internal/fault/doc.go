// Package fault is how chaos tests disturb a server from inside: a slow, hung
// or full disk and a wall clock that is wrong. It does so only in binaries
// built with the tag "chaos"; in all others every function is a constant that
// the compiler removes.
//
// In a chaos build the environment variable TRIVET_FAULTS names a file with the
// faults of the moment as JSON (see Faults). It may be replaced at any time, by
// rename; a file that is not there means no faults.
//
// The tag "planted" adds the deliberate bugs that the checkers are tested on
// (see Bug). TRIVET_PLANT chooses one of them by name.
//
// All functions are safe for use by several goroutines.
package fault

import "time"

// Faults is what the file of a chaos build says. The zero value disturbs
// nothing.
type Faults struct {
	// StoreDelay is added to every write of log entries, nanoseconds.
	StoreDelay time.Duration `json:"storeDelay,omitempty"`
	// StoreHang lets writes of log entries wait until it is false again.
	StoreHang bool `json:"storeHang,omitempty"`
	// StoreError makes writes of log entries fail with this text.
	StoreError string `json:"storeError,omitempty"`
	// ClockOffset is added to the wall clock, nanoseconds.
	ClockOffset time.Duration `json:"clockOffset,omitempty"`
}

// SeenSuffix is added to the name of the file of the faults: there a chaos
// build writes a Seen, as JSON, so that a test can assert that its faults
// happened.
const SeenSuffix = ".seen"

// Seen counts what this process was disturbed by since it began.
type Seen struct {
	// Delayed, Hung and Failed are writes of log entries.
	Delayed uint64 `json:"delayed"`
	Hung    uint64 `json:"hung"`
	Failed  uint64 `json:"failed"`
	// Clock is how often a wrong wall clock was read.
	Clock uint64 `json:"clock"`
}

// Bug is a deliberate bug.
type Bug string

// The bugs that can be planted.
const (
	// AckBeforeCommit answers a write before a majority has it.
	AckBeforeCommit Bug = "ack-before-commit"
	// StaleRead answers linearizable reads without asking anybody.
	StaleRead Bug = "stale-read"
	// EarlyExpiry expires sessions after a tenth of their time.
	EarlyExpiry Bug = "early-expiry"
	// SkippedEvent leaves out one event in fifty of a watch.
	SkippedEvent Bug = "skipped-event"
	// DoubleApply sends a retried write under a new number.
	DoubleApply Bug = "double-apply"
)
