package actors

import "sync"

// Attachment is what one server says about one session. The zero counts mean
// that it holds no stream of it any more.
type Attachment struct {
	SessionID string
	// DialStreams are those by which the peer can be asked to dial,
	// WatchStreams all others.
	DialStreams, WatchStreams int
	// EndedByPeer says that the peer itself ended the last of them, as opposed
	// to the server, a drain or a lost connection. Meaningful with no streams.
	EndedByPeer bool
}

// streams is the number of streams of either sort.
func (a Attachment) streams() int { return max(a.DialStreams, 0) + max(a.WatchStreams, 0) }

// attachmentEvents is where the table tells what a report changed. The calls
// come under the table's lock, in the order of the reports.
type attachmentEvents struct {
	// Attached: the session has a stream somewhere.
	Attached func(sessionID string)
	// Ended: its peer ended its last stream anywhere.
	Ended func(sessionID string)
	// Owner: dial streams of the session appeared or are gone.
	Owner func(sessionID string)
	// Exists says whether the state has the session.
	Exists func(sessionID string) bool
}

// attachments adds up which streams of which sessions the servers hold. It is
// soft state: the servers say it again to every leader. Safe for concurrent
// use.
type attachments struct {
	clock  *clock
	events attachmentEvents

	mu       sync.Mutex
	servers  map[string]*serverReport // guarded by mu
	sessions map[string]*presence     // guarded by mu
}

// serverReport is what one server has said.
type serverReport struct {
	boot string
	// heard is false until a report was taken in, and again once the server
	// was dropped: what a full first report says to have ended is history, not
	// news.
	heard bool
	held  map[string]heldStreams
}

// heldStreams is one session at one server. An entry without streams keeps in
// mind that the end by the peer was already acted upon.
type heldStreams struct {
	dial, watch int
	ended       bool
}

// presence is one session at all servers together.
type presence struct {
	dial, watch int
	since       instant // when dial last became or stopped being zero
}

func newAttachments(c *clock, ev attachmentEvents) *attachments {
	return &attachments{
		clock:    c,
		events:   ev,
		servers:  make(map[string]*serverReport),
		sessions: make(map[string]*presence),
	}
}

// set takes in a report; full says that sessions it does not name have no
// stream at that server.
func (t *attachments) set(server, boot string, full bool, atts []Attachment) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.servers[server]
	if r != nil && r.boot != boot {
		t.clear(r)
		r = nil
	}
	if r == nil {
		r = &serverReport{boot: boot, held: make(map[string]heldStreams)}
		t.servers[server] = r
	}
	if full {
		named := make(map[string]struct{}, len(atts))
		for _, a := range atts {
			named[a.SessionID] = struct{}{}
		}
		for id := range r.held {
			if _, ok := named[id]; !ok {
				t.apply(r, Attachment{SessionID: id}, false)
			}
		}
	}
	news := r.heard || !full
	for _, a := range atts {
		t.apply(r, a, news)
	}
	r.heard = true
}

// drop forgets the streams of a server that cannot be heard. Nobody's time is
// shortened by it, nor by what the server says to have ended when it is back.
func (t *attachments) drop(server string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.servers[server]; r != nil {
		t.clear(r)
		r.heard = false
	}
}

// clear takes back every stream of a report.
func (t *attachments) clear(r *serverReport) {
	for id, h := range r.held {
		t.apply(r, Attachment{SessionID: id, EndedByPeer: h.ended}, false)
	}
}

// apply replaces what a server holds of one session. news says whether an end
// by the peer is new.
func (t *attachments) apply(r *serverReport, a Attachment, news bool) {
	id := a.SessionID
	before := r.held[id]
	after := heldStreams{dial: max(a.DialStreams, 0), watch: max(a.WatchStreams, 0)}
	after.ended = a.EndedByPeer && a.streams() == 0
	if after.ended && !t.events.Exists(id) {
		after.ended, news = false, false // it would never be forgotten
	}
	if after == (heldStreams{}) {
		delete(r.held, id)
	} else {
		r.held[id] = after
	}

	p := t.sessions[id]
	if p == nil {
		p = &presence{}
		t.sessions[id] = p
	}
	had := p.dial > 0
	p.dial += after.dial - before.dial
	p.watch += after.watch - before.watch
	has := p.dial > 0
	if had != has {
		p.since = t.clock.now()
		t.events.Owner(id)
	}
	switch {
	case p.dial+p.watch > 0:
		t.events.Attached(id)
	case news && after.ended && !before.ended:
		t.events.Ended(id)
	}
	t.sweep(id, p)
}

// forget is told that a session has left the state.
func (t *attachments) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.servers {
		if h, ok := r.held[id]; ok && h.ended {
			delete(r.held, id)
		}
	}
	if p := t.sessions[id]; p != nil {
		t.sweep(id, p)
	}
}

// sweep drops what is known about a session that has neither row nor streams.
// With a row it is kept: it says since when the owner has been away.
func (t *attachments) sweep(id string, p *presence) {
	if p.dial == 0 && p.watch == 0 && !t.events.Exists(id) {
		delete(t.sessions, id)
	}
}

// owner says whether the owner with this session can be reached.
func (t *attachments) owner(sessionID string) owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.sessions[sessionID]
	if p == nil {
		return owner{}
	}
	return owner{Present: p.dial > 0, Since: p.since}
}

// size returns the number of sessions with a stream or a memory of one, and of
// servers heard.
func (t *attachments) size() (sessions, servers int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.sessions), len(t.servers)
}
