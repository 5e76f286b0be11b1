package authz

import (
	"context"
	"maps"
	"sync"

	"golang.org/x/time/rate"
)

// streams knows the open streams by identity.
type streams struct {
	mu   sync.Mutex
	open map[string]map[*context.CancelCauseFunc]bool // guarded by mu
}

// add notes a stream until the returned function is called.
func (s *streams) add(uri string, cancel context.CancelCauseFunc) (remove func()) {
	key := &cancel
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil {
		s.open = make(map[string]map[*context.CancelCauseFunc]bool)
	}
	if s.open[uri] == nil {
		s.open[uri] = make(map[*context.CancelCauseFunc]bool)
	}
	s.open[uri][key] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.open[uri], key); len(s.open[uri]) == 0 {
			delete(s.open, uri)
		}
	}
}

// end ends the streams of an identity.
func (s *streams) end(uri string, cause error) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for cancel := range s.open[uri] {
		(*cancel)(cause)
	}
	return len(s.open[uri])
}

// refusals counts by reason and says which to log.
type refusals struct {
	mu     sync.Mutex
	counts map[string]uint64 // guarded by mu
	log    *rate.Limiter     // guarded by mu
}

// add counts one; log says that it may be logged.
func (r *refusals) add(reason string) (log bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = make(map[string]uint64)
		r.log = newLogLimiter()
	}
	r.counts[reason]++
	return r.log.Allow()
}

func (r *refusals) all() map[string]uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.counts)
}
