package client

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/internal/config"
	"trivet/internal/errs"
)

// Metadata that trivet's own clients and servers exchange. Stock peers send
// and read none of it.
const (
	// RequestKey numbers a write so that the manager applies it once however
	// often it is sent: "<writer>/<number>/<lowest>".
	RequestKey = "trivet-request"
	// RevisionKey carries a revision of the replicated state, decimal. In a
	// request: answer from this revision or a later one. In response headers:
	// the revision that was answered from.
	RevisionKey = "trivet-revision"
	// ConsistencyKey says how fresh a read has to be, see Consistency.
	ConsistencyKey = "trivet-consistency"
)

// Consistency says how fresh a read has to be.
type Consistency string

// The consistencies. The empty one leaves the choice to the server, which
// means Default.
const (
	// Stale is what the asked server has, however old. It works without a
	// leader.
	Stale Consistency = "stale"
	// Default is at least what this client has seen before.
	Default Consistency = "default"
	// Linearizable is at least every write acknowledged before the read.
	Linearizable Consistency = "linearizable"
)

// ParseConsistency reads the name of a consistency; "" is allowed.
func ParseConsistency(name string) (Consistency, error) {
	names := []string{string(Stale), string(Default), string(Linearizable)}
	switch c := Consistency(name); c {
	case "", Stale, Default, Linearizable:
		return c, nil
	}
	hint := "use one of: stale, default, linearizable"
	if near := config.Closest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %s?", near)
	}
	return "", errs.New(codes.InvalidArgument, "USAGE", "unknown consistency %q", name).WithHint("%s", hint)
}

type consistencyKey struct{}

// WithConsistency makes calls under the returned context ask for c, whatever
// their Pool asks for by default.
func WithConsistency(ctx context.Context, c Consistency) context.Context {
	return context.WithValue(ctx, consistencyKey{}, c)
}

// outgoing adds what every call of the pool carries.
func (p *Pool) outgoing(ctx context.Context) context.Context {
	consistency := p.opts.Consistency
	if c, ok := ctx.Value(consistencyKey{}).(Consistency); ok {
		consistency = c
	}
	if consistency != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, ConsistencyKey, string(consistency))
	}
	if r := p.revision.highest(); r > 0 {
		ctx = metadata.AppendToOutgoingContext(ctx, RevisionKey, strconv.FormatUint(r, 10))
	}
	return ctx
}

// revisionMark is the highest revision seen: reads never go back behind it,
// whichever server answers.
type revisionMark struct {
	v atomic.Uint64
}

func (m *revisionMark) highest() uint64 { return m.v.Load() }

// note takes the revision out of response headers. Text that is no number is
// ignored: it would only cost freshness.
func (m *revisionMark) note(header metadata.MD) {
	for _, text := range header.Get(RevisionKey) {
		if r, err := strconv.ParseUint(text, 10, 64); err == nil {
			m.raise(r)
		}
	}
}

func (m *revisionMark) raise(r uint64) {
	for {
		seen := m.v.Load()
		if r <= seen || m.v.CompareAndSwap(seen, r) {
			return
		}
	}
}

// writer numbers the writes of one pool.
type writer struct {
	id string // new for every pool: numbers of an earlier life mean nothing

	mu     sync.Mutex
	last   uint64              // guarded by mu
	lowest uint64              // guarded by mu; the lowest number in open, or last+1
	open   map[uint64]struct{} // guarded by mu; numbers whose answer is waited for
}

func newWriter() *writer {
	return &writer{id: uuid.NewString(), lowest: 1, open: map[uint64]struct{}{}}
}

// begin takes the next number. The caller calls end when it waits for the
// answer no longer, however the call went.
func (w *writer) begin() (number uint64, end func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last++
	number = w.last
	end = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.open, number)
		for w.lowest <= w.last {
			if _, waited := w.open[w.lowest]; waited {
				break
			}
			w.lowest++
		}
	}
	w.open[number] = struct{}{}
	return number, end
}

// header is the metadata value of a number, made at each sending so that the
// manager can forget what nobody waits for.
func (w *writer) header(number uint64) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%s/%d/%d", w.id, number, w.lowest)
}
