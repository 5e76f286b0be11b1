package heart

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// Every is the time between two beats.
	Every = 50 * time.Millisecond
	// Round is how long a loop that can be woken up may rest before it says
	// that it is there.
	Round = 100 * time.Millisecond
	// Limit is how old the last sign of a loop may be for the heart to beat.
	Limit = 300 * time.Millisecond
)

// Heart beats. Make one with New.
type Heart struct {
	logger         *slog.Logger
	beats, missing prometheus.Counter

	mu    sync.Mutex
	loops map[*Loop]struct{} // guarded by mu
}

// New makes a heart and registers its metrics.
func New(logger *slog.Logger, reg prometheus.Registerer) *Heart {
	h := &Heart{
		logger: logger,
		loops:  map[*Loop]struct{}{},
		beats: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_node_beats_total",
			Help: "Heartbeats that were written.",
		}),
		missing: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "trivet_node_beats_withheld_total",
			Help: "Heartbeats that were not written because an accept loop gave no sign of life.",
		}),
	}
	reg.MustRegister(h.beats, h.missing)
	return h
}

// Run calls beat every Every while all loops live, until ctx ends. A beat that
// cannot be written is logged; whoever reads it draws the conclusion.
func (h *Heart) Run(ctx context.Context, beat func() error) {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	stuck := ""
	for {
		if name := h.stuck(); name == "" {
			if err := beat(); err != nil {
				h.logger.Error("heartbeat was not written", "err", err)
			} else {
				h.beats.Inc()
			}
			stuck = ""
		} else {
			h.missing.Inc()
			if stuck == "" {
				h.logger.Error("an accept loop is stuck, the heart stops", "loop", name)
			}
			stuck = name
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stuck returns the name of a loop without a sign of life, or "".
func (h *Heart) stuck() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	for l := range h.loops {
		if last := l.last.Load(); last != resting && time.Since(l.began)-time.Duration(last) > Limit {
			return l.name
		}
	}
	return ""
}

// resting stands for a sign of life that does not grow old.
const resting = -1

// Loop is one accept loop. Its methods are for that loop's goroutine.
type Loop struct {
	heart *Heart
	name  string
	began time.Time
	last  atomic.Int64 // since began, or resting
}

// Loop adds a loop, which is alive now. name is for logs.
func (h *Heart) Loop(name string) *Loop {
	l := &Loop{heart: h, name: name, began: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops[l] = struct{}{}
	return l
}

// Alive says that the loop has come round.
func (l *Loop) Alive() { l.last.Store(int64(time.Since(l.began))) }

// Waiting says that the loop is about to wait for as long as it takes. The
// next Alive ends it.
func (l *Loop) Waiting() { l.last.Store(resting) }

// End takes the loop out.
func (l *Loop) End() {
	l.heart.mu.Lock()
	defer l.heart.mu.Unlock()
	delete(l.heart.loops, l)
}
