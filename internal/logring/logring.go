// Package logring keeps the newest log records of a process in memory, so that
// a support bundle has them wherever the log itself went.
package logring

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"sync"
)

// Ring holds the newest records as lines of JSON, bounded by bytes: the oldest
// ones go first. It is safe for use by several goroutines.
type Ring struct {
	mu    sync.Mutex
	lines [][]byte // guarded by mu, oldest first
	size  int      // guarded by mu
	max   int
	gone  uint64 // guarded by mu
}

// New makes a ring of at most maxBytes.
func New(maxBytes int) *Ring { return &Ring{max: maxBytes} }

// Write takes one record; package slog writes each with one call.
func (r *Ring) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, bytes.Clone(line))
	r.size += len(line)
	for r.size > r.max && len(r.lines) > 0 {
		r.size -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.gone++
	}
	return len(line), nil
}

// Bytes returns the records, oldest first, and how many older ones are gone.
func (r *Ring) Bytes() (lines []byte, gone uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Join(r.lines, nil), r.gone
}

// Handler passes records to next and keeps those of at least level in the
// ring, as JSON, whatever level and format next has.
func (r *Ring) Handler(next slog.Handler, level slog.Leveler) slog.Handler {
	return both{next, slog.NewJSONHandler(io.Writer(r), &slog.HandlerOptions{Level: level})}
}

type both struct{ next, ring slog.Handler }

func (b both) Enabled(ctx context.Context, l slog.Level) bool {
	return b.next.Enabled(ctx, l) || b.ring.Enabled(ctx, l)
}

func (b both) Handle(ctx context.Context, rec slog.Record) error {
	if b.ring.Enabled(ctx, rec.Level) {
		if err := b.ring.Handle(ctx, rec.Clone()); err != nil {
			return err
		}
	}
	if b.next.Enabled(ctx, rec.Level) {
		return b.next.Handle(ctx, rec)
	}
	return nil
}

func (b both) WithAttrs(attrs []slog.Attr) slog.Handler {
	return both{b.next.WithAttrs(attrs), b.ring.WithAttrs(attrs)}
}

func (b both) WithGroup(name string) slog.Handler {
	return both{b.next.WithGroup(name), b.ring.WithGroup(name)}
}
