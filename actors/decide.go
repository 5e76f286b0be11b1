package actors

import (
	"hash/fnv"
	"time"

	commandv1 "trivet/proto/trivet/command/v1"
)

// decision is what a decide function wants done. Executing it is all that an
// actor does.
type decision struct {
	// Commands to propose; whoever proposes them adds the term.
	Commands []*commandv1.Command
	// Wake asks for another decision after so long even if nothing happens;
	// zero: only an event can change anything.
	Wake time.Duration
	// Effects are for the log and the counters.
	Effects []effect
	// Done says that the row is gone and the actor with it.
	Done bool
}

// effect is something worth a line in the log and a counter.
type effect int

const (
	effectOwnerAway effect = iota + 1
	effectOwnerBack
	effectLeaseEnded
	effectAgentsLost
	effectAgentsBack
)

// String is the text of the log line.
func (e effect) String() string {
	switch e {
	case effectOwnerAway:
		return "owner away"
	case effectOwnerBack:
		return "owner back"
	case effectLeaseEnded:
		return "lease ended"
	case effectAgentsLost:
		return "agents lost"
	case effectAgentsBack:
		return "agents back"
	default:
		return "unknown effect"
	}
}

// outcome is how a proposal ended, as far as its actor can tell.
type outcome int

const (
	// outcomeApplied: the state machine took the command.
	outcomeApplied outcome = iota + 1
	// outcomeRefused: it saw the command and left the row alone, usually
	// because the row had changed.
	outcomeRefused
	// outcomeUnknown: the command may or may not have taken effect.
	outcomeUnknown
)

// backoff is the pause before attempt failures+1, spread by up to a fifth
// around its centre by the key so that rows which failed together do not come
// back together. It is a function of its arguments alone.
func backoff(lim *Limits, key string, failures int) time.Duration {
	d := lim.RetryMax
	if shift := failures - 1; shift < 20 {
		d = min(lim.RetryMin<<max(shift, 0), lim.RetryMax)
	}
	h := fnv.New32a()
	h.Write([]byte(key))
	spread := time.Duration(h.Sum32()%401) - 200 // -200..200 thousandths
	return d + d/1000*spread
}

// soonest is the lesser of two waits where zero means none.
func soonest(a, b time.Duration) time.Duration {
	switch {
	case a <= 0:
		return b
	case b <= 0:
		return a
	default:
		return min(a, b)
	}
}
