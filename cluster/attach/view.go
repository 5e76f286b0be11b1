package attach

import (
	"context"
	"slices"
	"sync"
)

// Listener follows a View. Its methods are called with the view locked and
// must not block or call back.
type Listener interface {
	// SetAttachments tells what one server said; full replaces all it said before.
	SetAttachments(server, boot string, full bool, atts []Attachment)
	// DropServer tells that a server cannot be reached.
	DropServer(server string)
}

// View is what all servers said of their streams.
type View struct {
	mu        sync.Mutex
	servers   map[string]*serverView
	listener  Listener
	broadcast chan struct{}
}

type serverView struct {
	boot string
	atts map[string]Attachment
}

// NewView returns an empty view.
func NewView() *View {
	return &View{servers: make(map[string]*serverView), broadcast: make(chan struct{})}
}

// Set records what a server said. A new boot id forgets what an earlier
// incarnation said.
func (v *View) Set(server, boot string, full bool, atts []Attachment) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := v.servers[server]
	if s == nil || s.boot != boot || full {
		full = true
		s = &serverView{boot: boot, atts: make(map[string]Attachment)}
		v.servers[server] = s
	}
	for _, a := range atts {
		if a.DialStreams == 0 && a.WatchStreams == 0 {
			delete(s.atts, a.SessionID)
		} else {
			s.atts[a.SessionID] = a
		}
	}
	if v.listener != nil {
		v.listener.SetAttachments(server, boot, full, atts)
	}
	v.wakeLocked()
}

// Drop forgets a server that cannot be reached.
func (v *View) Drop(server string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.servers[server]; !ok {
		return
	}
	delete(v.servers, server)
	if v.listener != nil {
		v.listener.DropServer(server)
	}
	v.wakeLocked()
}

func (v *View) wakeLocked() {
	close(v.broadcast)
	v.broadcast = make(chan struct{})
}

// SetListener hands everything known to l and from then on every change; nil
// ends that.
func (v *View) SetListener(l Listener) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.listener = l
	if l == nil {
		return
	}
	for id, s := range v.servers {
		atts := make([]Attachment, 0, len(s.atts))
		for _, a := range s.atts {
			atts = append(atts, a)
		}
		l.SetAttachments(id, s.boot, true, atts)
	}
}

// DialServers lists the servers that hold a dial stream of the session, by id.
func (v *View) DialServers(session string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.dialServersLocked(session)
}

func (v *View) dialServersLocked(session string) []string {
	var out []string
	for id, s := range v.servers {
		if s.atts[session].DialStreams > 0 {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// Servers lists the servers that hold any stream of the session, by id.
func (v *View) Servers(session string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	var out []string
	for id, s := range v.servers {
		if _, ok := s.atts[session]; ok {
			out = append(out, id)
		}
	}
	slices.Sort(out)
	return out
}

// WaitDialServers returns as soon as some server holds a dial stream of the
// session that is not in tried.
func (v *View) WaitDialServers(ctx context.Context, session string, tried map[string]bool) ([]string, error) {
	for {
		v.mu.Lock()
		ids, changed := v.dialServersLocked(session), v.broadcast
		v.mu.Unlock()
		ids = slices.DeleteFunc(ids, func(id string) bool { return tried[id] })
		if len(ids) > 0 {
			return ids, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
