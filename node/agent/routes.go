package agent

import (
	"context"
	"sync"
)

// route is a target for as long as it stands.
type route struct {
	target
	// ctx ends when connections of the port no longer go there.
	ctx    context.Context
	cancel context.CancelFunc
}

// routes say where stolen connections go. The actor replaces them, the
// connections read them. The zero value is not usable; make one with
// newRoutes.
type routes struct {
	mu      sync.Mutex
	byPort  map[uint16]*route // guarded by mu
	known   bool              // guarded by mu; the manager has spoken
	closed  bool              // guarded by mu; the agent is gone
	changed chan struct{}     // guarded by mu; closed at any change
}

func newRoutes() *routes {
	return &routes{byPort: map[uint16]*route{}, changed: make(chan struct{})}
}

// lookup returns where connections of the port go, nil for the app. While
// known is false nobody can tell yet; changed is closed when that may have
// changed.
func (r *routes) lookup(port uint16) (to *route, known bool, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byPort[port], r.known || r.closed, r.changed
}

// set replaces all routes. One whose target is the same as before stays.
func (r *routes) set(targets map[uint16]target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	next := make(map[uint16]*route, len(targets))
	for port, t := range targets {
		if old := r.byPort[port]; old != nil && old.target == t {
			next[port] = old
			delete(r.byPort, port)
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		next[port] = &route{target: t, ctx: ctx, cancel: cancel}
	}
	r.replace(next)
	r.known = true
}

// close sends everything to the app from now on.
func (r *routes) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.replace(map[uint16]*route{})
	}
}

// replace ends what is left of the old routes. It is called with mu held.
func (r *routes) replace(next map[uint16]*route) {
	for _, old := range r.byPort {
		old.cancel()
	}
	r.byPort = next
	close(r.changed)
	r.changed = make(chan struct{})
}
