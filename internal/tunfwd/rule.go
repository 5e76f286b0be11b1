package tunfwd

import (
	"errors"
	"fmt"
	"time"
)

// Rule is what happens to the packets from one host to another. The zero value
// passes everything on at once.
type Rule struct {
	// Cut drops everything.
	Cut bool
	// Loss is the probability with which a packet is dropped, 0 to 1.
	Loss float64
	// Delay is added to every packet, and up to Jitter more.
	Delay, Jitter time.Duration
	// Rate limits the pair, in bytes per second; 0: no limit.
	Rate float64
}

// Validate reports everything that makes no sense.
func (r Rule) Validate() error {
	var problems []error
	if r.Loss < 0 || r.Loss > 1 {
		problems = append(problems, fmt.Errorf("loss %v is not between 0 and 1", r.Loss))
	}
	if r.Delay < 0 || r.Jitter < 0 {
		problems = append(problems, fmt.Errorf("delay %v and jitter %v must not be negative", r.Delay, r.Jitter))
	}
	if r.Rate < 0 {
		problems = append(problems, fmt.Errorf("rate %v must not be negative", r.Rate))
	}
	return errors.Join(problems...)
}

// waits says that packets may have to wait under the rule.
func (r Rule) waits() bool { return r.Delay > 0 || r.Jitter > 0 || r.Rate > 0 }

// Pair is a direction between two hosts, by name.
type Pair struct{ From, To string }

// String returns from>to.
func (p Pair) String() string { return p.From + ">" + p.To }

// Counters of one pair. They only grow.
type Counters struct {
	// Packets and Bytes were delivered; Waited of those had to wait first.
	Packets, Bytes, Waited uint64
	// Dropped, by cause: the rule's cut and loss, the bound on what waits, and
	// a device that did not take the packet.
	Cut, Lost, Overflow, Refused uint64
}

// Dropped is the sum of all causes.
func (c Counters) Dropped() uint64 { return c.Cut + c.Lost + c.Overflow + c.Refused }

// Sub is what happened since an earlier reading.
func (c Counters) Sub(before Counters) Counters {
	return Counters{
		Packets: c.Packets - before.Packets, Bytes: c.Bytes - before.Bytes, Waited: c.Waited - before.Waited,
		Cut: c.Cut - before.Cut, Lost: c.Lost - before.Lost, Overflow: c.Overflow - before.Overflow, Refused: c.Refused - before.Refused,
	}
}
