package actors

import (
	"errors"
	"fmt"
	"time"
)

// Limits are the durations by which the leader decides. The zero value stands
// for DefaultLimits; a value that sets some of them must set all.
type Limits struct {
	// AgentPeriod is how long an agent session lives after its last Remain.
	// Peers of the newer generation send one a minute.
	AgentPeriod time.Duration
	// OlderAgentPeriod takes the place of AgentPeriod once the agent has shown
	// itself as one of the older generation, which sends Remain every 5 s.
	OlderAgentPeriod time.Duration
	// EndedAgentPeriod takes the place of both, if shorter, after the agent
	// itself ended its last stream.
	EndedAgentPeriod time.Duration
	// ClientPeriod is how long a client session lives after its last activity.
	ClientPeriod time.Duration

	// OwnerGrace is how long the owner of an intercept may be without a dial
	// stream before the intercept is set AWAY.
	OwnerGrace time.Duration
	// FailoverGrace is the least age of a leader before it judges any owner
	// absent: the servers' reports need time to arrive.
	FailoverGrace time.Duration

	// Tick is the period of the janitor and the grain of session deadlines: a
	// session is expired at most one tick late, never early.
	Tick time.Duration
	// PauseGap is the time between two ticks above which the process is taken
	// to have been paused; all deadlines then move by the gap.
	PauseGap time.Duration
	// QuarantineRetry is how long a row whose actor kept crashing is left
	// alone.
	QuarantineRetry time.Duration

	// RetryMin and RetryMax bound the exponential backoff of a proposal that
	// did not take effect.
	RetryMin, RetryMax time.Duration
	// ProposeTimeout bounds one proposal and one confirmation of leadership.
	// After it the outcome counts as unknown.
	ProposeTimeout time.Duration
}

// DefaultLimits are the limits of a production leader.
func DefaultLimits() Limits {
	return Limits{
		AgentPeriod:      70 * time.Second,
		OlderAgentPeriod: 15 * time.Second,
		EndedAgentPeriod: 15 * time.Second,
		ClientPeriod:     24 * time.Hour,
		OwnerGrace:       5 * time.Second,
		FailoverGrace:    10 * time.Second,
		Tick:             time.Second,
		PauseGap:         5 * time.Second,
		QuarantineRetry:  60 * time.Second,
		RetryMin:         100 * time.Millisecond,
		RetryMax:         5 * time.Second,
		ProposeTimeout:   10 * time.Second,
	}
}

// validate reports every limit that makes no sense.
func (l Limits) validate() error {
	var problems []error
	for _, f := range []struct {
		name string
		d    time.Duration
	}{
		{"agent period", l.AgentPeriod},
		{"older agent period", l.OlderAgentPeriod},
		{"ended agent period", l.EndedAgentPeriod},
		{"client period", l.ClientPeriod},
		{"owner grace", l.OwnerGrace},
		{"failover grace", l.FailoverGrace},
		{"tick", l.Tick},
		{"pause gap", l.PauseGap},
		{"quarantine retry", l.QuarantineRetry},
		{"shortest retry", l.RetryMin},
		{"longest retry", l.RetryMax},
		{"propose timeout", l.ProposeTimeout},
	} {
		if f.d <= 0 {
			problems = append(problems, fmt.Errorf("%s must be positive, got %v", f.name, f.d))
		}
	}
	if l.PauseGap <= l.Tick {
		problems = append(problems, fmt.Errorf("pause gap %v must exceed the tick %v", l.PauseGap, l.Tick))
	}
	if l.RetryMax < l.RetryMin {
		problems = append(problems, fmt.Errorf("longest retry %v is below the shortest %v", l.RetryMax, l.RetryMin))
	}
	return errors.Join(problems...)
}
