// Package loglevel is the level of a process's log: configured, and replaced by
// another for a while.
package loglevel

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Trace is below slog's levels: the published contract of the manager has one
// below debug.
const Trace = slog.LevelDebug - 4

// ReasonUnknown is the reason of an error about the name of a level.
const ReasonUnknown = "BAD_LOG_LEVEL"

type named struct {
	name  string
	level slog.Level
}

var all = []named{
	{"error", slog.LevelError}, {"warn", slog.LevelWarn}, {"info", slog.LevelInfo}, {"debug", slog.LevelDebug}, {"trace", Trace},
}

// Names are those of the levels, the one that logs least first.
func Names() []string {
	out := make([]string, len(all))
	for i, l := range all {
		out[i] = l.name
	}
	return out
}

// Parse reads the name of a level, in any case; peers of the published contract
// may write "warning". name is how [Names] writes it.
func Parse(text string) (name string, level slog.Level, err error) {
	want := strings.ToLower(strings.TrimSpace(text))
	if want == "warning" {
		want = "warn"
	}
	i := slices.IndexFunc(all, func(l named) bool { return l.name == want })
	if i < 0 {
		return "", 0, errs.New(codes.InvalidArgument, ReasonUnknown, "log level %q is not known", text).
			WithHint("use %s", strings.Join(Names(), ", "))
	}
	return want, all[i].level, nil
}

// Var is the level of a log; it is a [slog.Leveler]. Its methods are safe for
// concurrent use.
type Var struct {
	configured slog.Level
	now        slog.LevelVar

	mu    sync.Mutex
	timer *time.Timer // ends what Use has set; guarded by mu
	uses  int         // guarded by mu
}

// New makes a Var at the configured level.
func New(configured slog.Level) *Var {
	v := &Var{configured: configured}
	v.now.Set(configured)
	return v
}

// Level implements slog.Leveler.
func (v *Var) Level() slog.Level { return v.now.Level() }

// Use replaces the configured level for some time; 0: until the next call of
// Use or Reset.
func (v *Var) Use(level slog.Level, during time.Duration) {
	v.mu.Lock()
	defer v.mu.Unlock()
	use := v.end()
	v.now.Set(level)
	if during > 0 {
		v.timer = time.AfterFunc(during, func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			// A timer that fires as it is stopped must not end what came after it.
			if v.uses == use {
				v.now.Set(v.configured)
			}
		})
	}
}

// Reset goes back to the configured level.
func (v *Var) Reset() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end()
	v.now.Set(v.configured)
}

// end stops the timer of the last use and counts the next; v.mu is held.
func (v *Var) end() int {
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
	v.uses++
	return v.uses
}
