package replica

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// hcLog passes what Raft logs to slog. hclog has no such bridge of its own.
type hcLog struct {
	log     *slog.Logger
	name    string
	implied []any
}

func newHCLog(l *slog.Logger) hclog.Logger { return &hcLog{log: l} }

func slogLevel(l hclog.Level) slog.Level {
	switch l {
	case hclog.Trace:
		return slog.LevelDebug - 4
	case hclog.Debug:
		return slog.LevelDebug
	case hclog.Warn:
		return slog.LevelWarn
	case hclog.Error:
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// Log writes one record. hclog's Fmt values are formatted here because slog
// does not know them.
func (h *hcLog) Log(level hclog.Level, msg string, args ...any) {
	l := slogLevel(level)
	if !h.log.Enabled(context.Background(), l) {
		return
	}
	for i, a := range args {
		if f, ok := a.(hclog.Format); ok && len(f) > 0 {
			if s, ok := f[0].(string); ok {
				args[i] = fmt.Sprintf(s, f[1:]...)
			}
		}
	}
	h.log.Log(context.Background(), l, msg, args...)
}

func (h *hcLog) Trace(msg string, args ...any) { h.Log(hclog.Trace, msg, args...) }
func (h *hcLog) Debug(msg string, args ...any) { h.Log(hclog.Debug, msg, args...) }
func (h *hcLog) Info(msg string, args ...any)  { h.Log(hclog.Info, msg, args...) }
func (h *hcLog) Warn(msg string, args ...any)  { h.Log(hclog.Warn, msg, args...) }
func (h *hcLog) Error(msg string, args ...any) { h.Log(hclog.Error, msg, args...) }

func (h *hcLog) enabled(l hclog.Level) bool {
	return h.log.Enabled(context.Background(), slogLevel(l))
}
func (h *hcLog) IsTrace() bool      { return h.enabled(hclog.Trace) }
func (h *hcLog) IsDebug() bool      { return h.enabled(hclog.Debug) }
func (h *hcLog) IsInfo() bool       { return h.enabled(hclog.Info) }
func (h *hcLog) IsWarn() bool       { return h.enabled(hclog.Warn) }
func (h *hcLog) IsError() bool      { return h.enabled(hclog.Error) }
func (h *hcLog) ImpliedArgs() []any { return h.implied }
func (h *hcLog) Name() string       { return h.name }

// With returns a logger that adds args to every record.
func (h *hcLog) With(args ...any) hclog.Logger {
	return &hcLog{log: h.log.With(args...), name: h.name, implied: append(h.implied[:len(h.implied):len(h.implied)], args...)}
}

// Named returns a logger with a further part in its name.
func (h *hcLog) Named(name string) hclog.Logger {
	if h.name != "" {
		name = h.name + "." + name
	}
	return h.ResetNamed(name)
}

// ResetNamed returns a logger with another name.
func (h *hcLog) ResetNamed(name string) hclog.Logger {
	return &hcLog{log: h.log.With("logger", name), name: name, implied: h.implied}
}

// SetLevel does nothing: the handler behind slog decides.
func (h *hcLog) SetLevel(hclog.Level) {}

// GetLevel says what the handler behind slog lets through.
func (h *hcLog) GetLevel() hclog.Level {
	for _, l := range []hclog.Level{hclog.Trace, hclog.Debug, hclog.Info, hclog.Warn} {
		if h.enabled(l) {
			return l
		}
	}
	return hclog.Error
}

// StandardLogger returns a log.Logger that writes at info level.
func (h *hcLog) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return log.New(h.StandardWriter(nil), "", 0)
}

// StandardWriter returns a writer whose lines become records.
func (h *hcLog) StandardWriter(*hclog.StandardLoggerOptions) io.Writer {
	return lineWriter{h}
}

type lineWriter struct{ h *hcLog }

func (w lineWriter) Write(p []byte) (int, error) {
	w.h.Info(string(p))
	return len(p), nil
}
