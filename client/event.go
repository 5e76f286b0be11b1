package client

import (
	"context"
	"io"
	"net/netip"
	"sync"
	"time"
)

// EventKind names what happened. The names are stable: programs read them.
type EventKind string

// The kinds of events.
const (
	// EventConnected: the session is attached to Server.
	EventConnected EventKind = "connected"
	// EventReconnecting: the connection is lost, Message says why; once per
	// outage, and once more when no server can be reached.
	EventReconnecting EventKind = "reconnecting"
	// EventRenewed: the manager had forgotten the session; there is a new one
	// and the intercepts are being made again.
	EventRenewed EventKind = "renewed"
	// EventWaiting: no agent has approved the intercept yet, or again.
	EventWaiting EventKind = "waiting"
	// EventActive: the intercept's traffic comes here.
	EventActive EventKind = "active"
	// EventNoAgent: no agent can serve the intercept; it waits for one.
	EventNoAgent EventKind = "no-agent"
	// EventFailed: the intercept is over because of Err.
	EventFailed EventKind = "failed"
	// EventRemoved: the intercept is over because it was removed, by this
	// session or by somebody else.
	EventRemoved EventKind = "removed"
	// EventWarning: something that the user should look at; see Message, Hint.
	EventWarning EventKind = "warning"
	// EventConnection: a connection from From is open to the local process.
	EventConnection EventKind = "connection"
	// EventClosed: that connection has ended; see BytesIn, BytesOut, Duration.
	EventClosed EventKind = "closed"
	// EventRefused: a connection was refused; Message says why.
	EventRefused EventKind = "refused"
)

// perConnection kinds come with the traffic, the others with state.
func (k EventKind) perConnection() bool {
	return k == EventConnection || k == EventClosed || k == EventRefused
}

// Event is something that a user of a session may want to see. Fields that a
// kind does not speak of are zero.
type Event struct {
	Time time.Time
	Kind EventKind
	// Intercept is the name of the intercept concerned.
	Intercept string
	// Server and Address say which server.
	Server, Address string
	// Message is one line, Hint one of what to do.
	Message, Hint string
	// Err is the cause of EventReconnecting and EventFailed.
	Err error
	// From is the visitor's address, ID tells its connection from others.
	From netip.AddrPort
	ID   uint64
	// BytesIn came from the visitor, BytesOut went to it.
	BytesIn, BytesOut uint64
	Duration          time.Duration
	// Missed counts the events about connections that were dropped right
	// before this one because nobody took them.
	Missed uint64
}

// maxEvents bounds what a reader that does not read can cost.
const maxEvents = 1024

// eventQueue keeps the newest events. Full, it drops the oldest event about a
// connection, so that a burst of traffic cannot push state out.
type eventQueue struct {
	mu      sync.Mutex
	events  []Event       // guarded by mu
	missed  uint64        // guarded by mu; not yet told to a reader
	dropped uint64        // guarded by mu; all of them
	closed  bool          // guarded by mu
	wake    chan struct{} // capacity 1
}

func newEventQueue() *eventQueue { return &eventQueue{wake: make(chan struct{}, 1)} }

func (q *eventQueue) put(e Event) {
	q.mu.Lock()
	if !q.closed {
		if len(q.events) == maxEvents {
			q.drop()
		}
		q.events = append(q.events, e)
	}
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) drop() {
	at := 0
	for i, e := range q.events {
		if e.Kind.perConnection() {
			at = i
			break
		}
	}
	q.missed++
	q.dropped++
	q.events = append(q.events[:at], q.events[at+1:]...)
}

func (q *eventQueue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.signal()
}

func (q *eventQueue) droppedTotal() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.dropped
}

// next returns the oldest event; io.EOF once the queue is closed and empty.
func (q *eventQueue) next(ctx context.Context) (Event, error) {
	for {
		q.mu.Lock()
		if len(q.events) > 0 {
			e := q.events[0]
			q.events = q.events[1:]
			e.Missed, q.missed = q.missed, 0
			more := len(q.events) > 0 || q.closed
			q.mu.Unlock()
			if more { // for other readers
				q.signal()
			}
			return e, nil
		}
		closed := q.closed
		q.mu.Unlock()
		if closed {
			q.signal()
			return Event{}, io.EOF
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}
