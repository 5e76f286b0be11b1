package peersim

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Kind says what a peer saw or did.
type Kind string

// The kinds of events. Subject and Err of an event are as said here.
const (
	// Arrived: a session began; Session is its id.
	Arrived Kind = "arrived"
	// Reused: a client went on with a session that it remembered.
	Reused Kind = "reused"
	// Ready: all watches are open and the first intercepts are known.
	Ready Kind = "ready"
	// Remained: a keepalive was answered; Err if not with OK.
	Remained Kind = "remained"
	// Snapshot: the intercepts that the peer knows changed; Subject lists them.
	Snapshot Kind = "snapshot"
	// Dropped: the peer let go of all intercepts, as if none were left.
	Dropped Kind = "dropped"
	// Reviewed: an agent gave its verdict on the intercept Subject.
	Reviewed Kind = "reviewed"
	// Asked: a dial request came; Subject is the connection.
	Asked Kind = "asked"
	// Refused: a dial request was not worked off, for too many are; Subject is
	// the connection.
	Refused Kind = "refused"
	// Tunnelled: a tunnel that answered a dial request is over.
	Tunnelled Kind = "tunnelled"
	// Resolved: an agent answered a question; Subject is the name.
	Resolved Kind = "resolved"
	// Level: an agent was told a log level, Subject.
	Level Kind = "level"
	// Pods: a client's list of pods changed; Subject counts them.
	Pods Kind = "pods"
	// Network: a client was told about the network.
	Network Kind = "network"
	// Broken: the stream of the rpc Subject ended; nil Err means OK.
	Broken Kind = "broken"
	// Dead: the function of the rpc Subject is off for the rest of the session.
	Dead Kind = "dead"
	// Reconnected: ReconnectAgent or ReconnectClient was answered.
	Reconnected Kind = "reconnected"
	// Failed: an attempt to begin a session failed at the rpc Subject.
	Failed Kind = "failed"
	// Departed: Depart was called; Err is its answer.
	Departed Kind = "departed"
	// Ended: the peer gave its session up; Err is why, nil when it was told to.
	Ended Kind = "ended"
)

// Event is one thing that a peer saw or did.
type Event struct {
	At      time.Time
	Kind    Kind
	Session string
	Subject string
	Err     error
}

func (e Event) String() string {
	s := fmt.Sprintf("%s %s", e.At.Format("15:04:05.000"), e.Kind)
	if e.Subject != "" {
		s += " " + e.Subject
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// defaultRecord is how many events a peer keeps.
const defaultRecord = 256

// Record keeps the last events of a peer and the number of all by kind. The
// oldest go first. It may be used by several goroutines.
type Record struct {
	limit int

	mu     sync.Mutex
	events []Event      // guarded by mu; a ring once it is full
	first  uint64       // guarded by mu; number of the oldest event
	total  uint64       // guarded by mu
	counts map[Kind]int // guarded by mu
	// waiters is guarded by mu; each has room for one call to look.
	waiters map[chan struct{}]struct{}
}

func newRecord(limit int) *Record {
	if limit <= 0 {
		limit = defaultRecord
	}
	return &Record{limit: limit, counts: make(map[Kind]int), waiters: make(map[chan struct{}]struct{})}
}

func (r *Record) add(e Event) {
	e.At = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) < r.limit {
		r.events = append(r.events, e)
	} else {
		r.events[r.total%uint64(r.limit)] = e
		r.first++
	}
	r.total++
	r.counts[e.Kind]++
	for w := range r.waiters {
		select {
		case w <- struct{}{}:
		default: // it has not looked since the last one
		}
	}
}

// Count is how many events of a kind there were, those that are gone too.
func (r *Record) Count(k Kind) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[k]
}

// Mark is the place in the record after the newest event.
func (r *Record) Mark() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total
}

// Lost is how many events are not kept any more.
func (r *Record) Lost() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first
}

// Since lists the events from a mark on, as far as they are kept.
func (r *Record) Since(mark uint64) []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []Event
	for n := max(mark, r.first); n < r.total; n++ {
		out = append(out, r.events[n%uint64(r.limit)])
	}
	return out
}

// Wait returns the first event from mark on for which is holds, and the mark
// after it. Events that are not kept any more are passed over. An error says
// that ctx ended first.
func (r *Record) Wait(ctx context.Context, mark uint64, is func(Event) bool) (Event, uint64, error) {
	w := make(chan struct{}, 1)
	r.mu.Lock()
	r.waiters[w] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.waiters, w)
		r.mu.Unlock()
	}()
	for {
		r.mu.Lock()
		mark = max(mark, r.first)
		for ; mark < r.total; mark++ {
			if e := r.events[mark%uint64(r.limit)]; is(e) {
				r.mu.Unlock()
				return e, mark + 1, nil
			}
		}
		r.mu.Unlock()
		select {
		case <-w:
		case <-ctx.Done():
			return Event{}, mark, fmt.Errorf("wait for an event of a peer: %w", ctx.Err())
		}
	}
}

// Is matches events of a kind.
func Is(k Kind) func(Event) bool { return func(e Event) bool { return e.Kind == k } }

// About matches events of a kind with a subject.
func About(k Kind, subject string) func(Event) bool {
	return func(e Event) bool { return e.Kind == k && e.Subject == subject }
}
