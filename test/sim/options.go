package sim

import (
	"fmt"
	"strings"
	"time"

	"trivet/actors"
)

// Options of one run.
type Options struct {
	// Seed chooses everything.
	Seed uint64
	// Chaos is the time during which faults happen, then the run is brought to
	// rest; 0 means 150 seconds.
	Chaos time.Duration
	// Faults bounds the number of faults; 0 means that there is no bound,
	// negative that there are none. See Shrink.
	Faults int
	// Plant is the deliberate bug.
	Plant Bug
	// Trace, if set, is given each line of the trace when it happens.
	Trace func(string)

	// until ends the run earlier; 0: no.
	until time.Duration
}

// chaos is the time during which faults happen.
func (o Options) chaos() time.Duration {
	if o.Chaos == 0 {
		return defaultChaos
	}
	return o.Chaos
}

// Bug is a violation that a run can be given, to see that it is found.
type Bug int

// The bugs.
const (
	// NoBug is none.
	NoBug Bug = iota
	// AckEarly answers writes when the leader alone has them.
	AckEarly
	// NoDedupe applies a repeated write again.
	NoDedupe
	// LoseHints keeps changes of intercepts from the projector for ever.
	LoseHints
	// ExpireEarly expires agents after a tenth of their time.
	ExpireEarly
	// NoFence applies commands of an old term.
	NoFence
	// SkipEvent leaves events out of watches.
	SkipEvent
	// LoseEntry leaves an entry out on one server.
	LoseEntry
	// VoteForOld elects servers that lack what was committed.
	VoteForOld
	// StickyOwner never tells the leader that a stream has gone.
	StickyOwner
	// DeafLeader answers keepalives without asking whether it still leads.
	DeafLeader
	bugs
)

var bugNames = [bugs]string{
	"none", "ack-early", "no-dedupe", "lose-hints", "expire-early", "no-fence", "skip-event",
	"lose-entry", "vote-for-old", "sticky-owner", "deaf-leader",
}

// String is the name of the bug.
func (b Bug) String() string {
	if b < 0 || b >= bugs {
		return fmt.Sprintf("Bug(%d)", int(b))
	}
	return bugNames[b]
}

// Result is how a run went.
type Result struct {
	Seed uint64
	// At is the simulated time at the end.
	At time.Duration
	// Failure says what was found to be wrong; empty: nothing.
	Failure string
	// Last is the end of the trace, one line for each thing of importance.
	Last []string
	// Hash is a hash of the whole run.
	Hash uint64
	Counts
}

// Counts say how much a run did.
type Counts struct {
	// Steps is the number of choices of what to do next: of interleavings.
	Steps uint64
	// Faults is the number of faults.
	Faults int
	// What the model did and saw.
	Elections, StaleLeaders, Truncated, Installs, Snapshots, Restarts, Pauses, Partitions int
	Commands, Repeated, Fenced, Unknown, Acked, NotAcked                                  int
	Touches, Expired, Intercepts, Away, Conflicts, Active, Batches, Resyncs, Moves        int
}

// Add adds another run's.
func (c *Counts) Add(o Counts) {
	c.Steps += o.Steps
	for i, p := range c.fields() {
		*p.n += *o.fields()[i].n
	}
}

type count struct {
	name string
	n    *int
}

func (c *Counts) fields() []count {
	return []count{
		{"faults", &c.Faults},
		{"elections", &c.Elections},
		{"stale leaders", &c.StaleLeaders},
		{"entries truncated", &c.Truncated},
		{"snapshots installed", &c.Installs},
		{"snapshots", &c.Snapshots},
		{"restarts", &c.Restarts},
		{"pauses", &c.Pauses},
		{"partitions", &c.Partitions},
		{"commands", &c.Commands},
		{"repeated", &c.Repeated},
		{"fenced", &c.Fenced},
		{"outcomes unknown", &c.Unknown},
		{"writes acknowledged", &c.Acked},
		{"writes given up", &c.NotAcked},
		{"keepalives", &c.Touches},
		{"sessions expired", &c.Expired},
		{"intercepts", &c.Intercepts},
		{"owners away", &c.Away},
		{"conflicts", &c.Conflicts},
		{"intercepts active", &c.Active},
		{"watch batches", &c.Batches},
		{"watch resyncs", &c.Resyncs},
		{"watches moved", &c.Moves},
	}
}

// Missing names what never happened.
func (c *Counts) Missing() []string {
	var out []string
	for _, f := range c.fields() {
		if *f.n == 0 {
			out = append(out, f.name)
		}
	}
	return out
}

// String lists the counts in one line.
func (c *Counts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d steps", c.Steps)
	for _, f := range c.fields() {
		fmt.Fprintf(&b, ", %d %s", *f.n, f.name)
	}
	return b.String()
}

// limits are those of a production server, but that clients do not live for a
// day.
func limits(plant Bug) actors.Limits {
	l := actors.DefaultLimits()
	l.ClientPeriod = 4 * time.Minute
	if plant == ExpireEarly {
		l.AgentPeriod /= 10
		l.OlderAgentPeriod /= 10
	}
	return l
}
