package rt

import (
	"time"
)

// OnExceed says what follows when a limit is exceeded.
type OnExceed uint8

const (
	// OnExceedDefault is Quarantine in a RestartPolicy and Escalate in a
	// GroupPolicy.
	OnExceedDefault OnExceed = iota
	// Quarantine stops the actor or group for good and counts it with its
	// parent. Nothing else is affected. Whoever spawned it sees Ref.Done.
	Quarantine
	// Escalate makes it the parent's problem: a group passes it on as its own
	// GroupPolicy says, an actor that is the parent fails. An actor that
	// escalates is stopped; a group that does goes on until it is told to
	// stop, because its other children are in order.
	Escalate
)

// Limits of a RestartPolicy that names none.
const (
	DefaultRestartMin       = 100 * time.Millisecond
	DefaultRestartMax       = 10 * time.Second
	DefaultRestartIntensity = 5
	DefaultRestartWindow    = time.Minute
)

// NoRestart is a RestartPolicy.Intensity: the first failure exceeds the limit.
const NoRestart = -1

// backoffSpread is the part by which a delay is shortened or lengthened at
// random, so that actors that failed together do not restart together.
const backoffSpread = 0.2

// A RestartPolicy says how an actor comes back after a failure. A field that
// is zero has its default.
type RestartPolicy struct {
	// Min is the delay before the first restart. It doubles with each further
	// failure within Window, up to Max, and varies by 20 %.
	Min, Max time.Duration
	// Intensity is the number of restarts within Window that are allowed; the
	// next failure exceeds it. NoRestart allows none.
	Intensity int
	// Window is how long a failure is remembered.
	Window time.Duration
	// OnExceed says what follows.
	OnExceed OnExceed
}

func (p RestartPolicy) normal() RestartPolicy {
	if p.Min <= 0 {
		p.Min = DefaultRestartMin
	}
	if p.Max <= 0 {
		p.Max = DefaultRestartMax
	}
	p.Max = max(p.Max, p.Min)
	switch {
	case p.Intensity == 0:
		p.Intensity = DefaultRestartIntensity
	case p.Intensity < 0:
		p.Intensity = 0
	}
	if p.Window <= 0 {
		p.Window = DefaultRestartWindow
	}
	if p.OnExceed == OnExceedDefault {
		p.OnExceed = Quarantine
	}
	return p
}

// history is the times of what happened lately, oldest first.
type history []time.Time

// forget removes what is older than window.
func (h *history) forget(now time.Time, window time.Duration) {
	n := 0
	for n < len(*h) && now.Sub((*h)[n]) >= window {
		n++
	}
	*h = append((*h)[:0], (*h)[n:]...)
}

// failed notes a failure at now. It returns the delay before the restart, or
// false if policy, which must be normal, allows no more. jitter, in [0, 1),
// chooses the variation.
func (h *history) failed(p RestartPolicy, now time.Time, jitter float64) (time.Duration, bool) {
	h.forget(now, p.Window)
	if len(*h) >= p.Intensity {
		return 0, false
	}
	d := p.Min
	for range *h {
		if d >= p.Max {
			break
		}
		d *= 2
	}
	*h = append(*h, now)
	spread := 1 + backoffSpread*(2*jitter-1)
	return min(time.Duration(float64(min(d, p.Max))*spread), p.Max), true
}
