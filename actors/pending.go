package actors

import "sync"

// idSet is a set of ids that waits for the projector. It is as large as the
// number of rows it may name, at most, and takes the place of messages that a
// full mailbox would refuse. Safe for concurrent use.
type idSet struct {
	mu  sync.Mutex
	ids map[string]struct{} // guarded by mu
}

// add puts an id into the set.
func (s *idSet) add(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = make(map[string]struct{})
	}
	s.ids[id] = struct{}{}
}

// take empties the set.
func (s *idSet) take() map[string]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids
	s.ids = nil
	return ids
}

// quarantine remembers the intercepts whose actors kept failing and when each
// may be tried again. Safe for concurrent use.
type quarantine struct {
	mu    sync.Mutex
	until map[string]instant // guarded by mu
}

// add leaves an intercept alone until then.
func (q *quarantine) add(id string, until instant) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.until == nil {
		q.until = make(map[string]instant)
	}
	q.until[id] = until
}

// has says whether an intercept is to be left alone.
func (q *quarantine) has(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.until[id]
	return ok
}

// remove forgets an intercept whose row is gone.
func (q *quarantine) remove(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.until, id)
}

// release takes out the intercepts whose time has come.
func (q *quarantine) release(now instant) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var ids []string
	for id, until := range q.until {
		if now >= until {
			ids = append(ids, id)
			delete(q.until, id)
		}
	}
	return ids
}

func (q *quarantine) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.until)
}
