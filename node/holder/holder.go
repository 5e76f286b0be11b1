package holder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"trivet/node/handoff"
	"trivet/node/steal"
)

// Defaults of a Config.
const (
	// DefaultHangAfter is how old the heartbeat may be.
	DefaultHangAfter = time.Second
	// DefaultStartWithin is how long a traffic process may take to its first
	// beat; a loaded machine is slow to start one.
	DefaultStartWithin = 15 * time.Second
	// DefaultDrain is how long a traffic process may take to end when asked
	// to: the time that it gives open connections, and some more.
	DefaultDrain = 12 * time.Second
	// DefaultRestartMin and DefaultRestartMax are the wait before the next
	// start; it doubles as long as processes do not live for steady.
	DefaultRestartMin = 100 * time.Millisecond
	DefaultRestartMax = 5 * time.Second
)

// steady is how long a traffic process must live for the next one to start at
// once again.
const steady = 10 * time.Second

// Config describes a Holder. Durations that are zero have their default.
type Config struct {
	// Command makes the traffic process, not yet started. The holder adds the
	// socket as descriptor 3.
	Command func() *exec.Cmd
	// BootID names this life of the holder.
	BootID string
	// Steal tells whether connections can be stolen here; if not, Reason says
	// why.
	Steal  bool
	Reason string
	// Settings are passed on in the welcome.
	Settings json.RawMessage
	// PIDFile is where the traffic process's id is kept; empty for nowhere.
	PIDFile string

	HangAfter   time.Duration
	StartWithin time.Duration
	Drain       time.Duration
	RestartMin  time.Duration
	RestartMax  time.Duration

	Logger   *slog.Logger
	Registry prometheus.Registerer
}

func (c *Config) setDefaults() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&c.HangAfter, DefaultHangAfter)
	set(&c.StartWithin, DefaultStartWithin)
	set(&c.Drain, DefaultDrain)
	set(&c.RestartMin, DefaultRestartMin)
	set(&c.RestartMax, DefaultRestartMax)
}

// Holder holds. Make one with New.
type Holder struct {
	cfg     Config
	pods    *pods
	metrics *metrics
	// sentBeat is the time of the last beat that came as a message, in
	// nanoseconds since epoch; 0 if there was none.
	sentBeat atomic.Int64
	epoch    time.Time

	mu     sync.Mutex
	life   *life          // guarded by mu; nil while no process runs
	status handoff.Status // guarded by mu
}

// New makes a holder. Run closes what it owns.
func New(cfg Config) (*Holder, error) {
	cfg.setDefaults()
	h := &Holder{cfg: cfg, pods: &pods{held: map[string]*pod{}}, epoch: time.Now()}
	if cfg.Steal {
		beat, err := steal.NewBeat()
		if err != nil {
			return nil, err
		}
		h.pods.beat = beat
	}
	h.metrics = newMetrics(cfg.Registry, h)
	return h, nil
}

// Backend returns the name of the usual way of stealing.
func (h *Holder) Backend() string {
	if h.cfg.Steal {
		return steal.NameSkLookup
	}
	return steal.NameProxy
}

// Run keeps a traffic process until ctx ends, then has it end and gives all
// pods back.
func (h *Holder) Run(ctx context.Context) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer func() {
		err = errors.Join(err, h.close())
	}()
	wait := h.cfg.RestartMin
	for {
		began := time.Now()
		reason, lifeErr := h.live(ctx)
		if ctx.Err() != nil {
			return nil
		}
		h.metrics.restarts.WithLabelValues(reason).Inc()
		if time.Since(began) >= steady {
			wait = h.cfg.RestartMin
		}
		h.cfg.Logger.Error("traffic process ended, the next one will start",
			"reason", reason, "err", lifeErr, "delay", wait)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, h.cfg.RestartMax)
	}
}

func (h *Holder) close() error {
	err := h.pods.close()
	if h.pods.beat != nil {
		err = errors.Join(err, h.pods.beat.Close())
	}
	return err
}

// beatAge returns the age of the heartbeat; ok is false before the first.
func (h *Holder) beatAge() (age time.Duration, ok bool) {
	if h.pods.beat != nil {
		age, ok, err := h.pods.beat.Age()
		return age, ok && err == nil
	}
	at := h.sentBeat.Load()
	return time.Since(h.epoch) - time.Duration(at), at != 0
}

// Ready returns nil when traffic is served and the manager gives orders, else
// what is missing.
func (h *Holder) Ready() error {
	h.mu.Lock()
	l, status := h.life, h.status
	h.mu.Unlock()
	switch {
	case l == nil:
		return errors.New("no traffic process runs")
	case !l.beats():
		return errors.New("the traffic process shows no heartbeat")
	case !status.Connected:
		return errors.New("no server of the manager gives orders")
	}
	return nil
}

// Metrics returns the metrics of the traffic process.
func (h *Holder) Metrics(ctx context.Context) ([]byte, error) {
	h.mu.Lock()
	l := h.life
	h.mu.Unlock()
	if l == nil {
		return nil, errors.New("no traffic process runs")
	}
	return l.server.Metrics(ctx)
}

// Signal sends the traffic process a signal, if one runs.
func (h *Holder) Signal(sig os.Signal) {
	h.mu.Lock()
	l := h.life
	h.mu.Unlock()
	if l != nil {
		// It fails for a process that has just ended; the next one starts
		// afresh.
		_ = l.cmd.Process.Signal(sig)
	}
}

// Welcome implements handoff.Handler. What a traffic process before this one
// has armed is disarmed first: the new one beats before it can know what the
// manager wants.
func (h *Holder) Welcome(int) (handoff.Welcome, *os.File, error) {
	if err := h.pods.disarm(); err != nil {
		return handoff.Welcome{}, nil, err
	}
	w := handoff.Welcome{
		BootID: h.cfg.BootID, Backend: h.Backend(), Reason: h.cfg.Reason,
		Held: h.pods.uids(), Settings: h.cfg.Settings,
	}
	if h.pods.beat == nil {
		return w, nil, nil
	}
	f, err := h.pods.beat.File()
	return w, f, err
}

// Attach implements handoff.Handler.
func (h *Holder) Attach(ctx context.Context, r handoff.Request) (handoff.Attached, []*os.File, error) {
	a, files, err := h.pods.attach(ctx, r)
	if err != nil {
		h.cfg.Logger.Error("pod is not attached", "uid", r.UID, "netns", r.Net.String(), "err", err)
		return a, files, err
	}
	h.cfg.Logger.Debug("pod is attached", "uid", r.UID, "netns", r.Net.String(), "backend", a.Backend)
	return a, files, nil
}

// Detach implements handoff.Handler.
func (h *Holder) Detach(uid string) error { return h.pods.detach(uid) }

// Beat implements handoff.Handler.
func (h *Holder) Beat() { h.sentBeat.Store(int64(time.Since(h.epoch))) }

// Status implements handoff.Handler.
func (h *Holder) Status(s handoff.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = s
}

func (h *Holder) setLife(l *life) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.life, h.status = l, handoff.Status{}
}

// writePID keeps the process's id for people and scripts.
func (h *Holder) writePID(pid int) {
	if h.cfg.PIDFile == "" {
		return
	}
	tmp := h.cfg.PIDFile + ".new"
	err := os.WriteFile(tmp, fmt.Appendf(nil, "%d\n", pid), 0o644)
	if err == nil {
		err = os.Rename(tmp, h.cfg.PIDFile)
	}
	if err != nil {
		h.cfg.Logger.Error("process id of the traffic process is not kept", "err", err)
	}
}

func (h *Holder) removePID() {
	if h.cfg.PIDFile != "" {
		_ = os.Remove(h.cfg.PIDFile) // it may never have been written
	}
}
