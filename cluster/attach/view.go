package attach

import (
	"context"
	"slices"
	"strings"
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
	said      uint64
}

type serverView struct {
	boot string
	atts map[string]held
}

// held is what a server last said of a session, and when: said grows with
// everything that is said of anybody.
type held struct {
	Attachment
	said uint64
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
		s = &serverView{boot: boot, atts: make(map[string]held)}
		v.servers[server] = s
	}
	v.said++
	for _, a := range atts {
		if a.DialStreams == 0 && a.WatchStreams == 0 {
			delete(s.atts, a.SessionID)
		} else {
			s.atts[a.SessionID] = held{a, v.said}
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
			atts = append(atts, a.Attachment)
		}
		l.SetAttachments(id, s.boot, true, atts)
	}
}

// DialServers lists the servers that hold a dial stream of the session, by id.
func (v *View) DialServers(session string) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make([]string, 0, len(v.servers))
	for _, o := range v.offersLocked(session) {
		out = append(out, o.Server)
	}
	return out
}

// Offer is a server to which a dial request can be passed. Two of the same
// server are equal if the server has said nothing of the session in between.
type Offer struct {
	Server string
	said   uint64
}

func (v *View) offersLocked(session string) []Offer {
	var out []Offer
	for id, s := range v.servers {
		if a := s.atts[session]; a.DialStreams > 0 {
			out = append(out, Offer{id, a.said})
		}
	}
	slices.SortFunc(out, func(a, b Offer) int { return strings.Compare(a.Server, b.Server) })
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

// WaitOffer returns as soon as there is an offer that is not in tried. A server
// that refused is offered again once it has said something new of the session:
// a peer that reconnects may come back to the same one.
func (v *View) WaitOffer(ctx context.Context, session string, tried map[Offer]bool) (Offer, error) {
	for {
		v.mu.Lock()
		offers, changed := v.offersLocked(session), v.broadcast
		v.mu.Unlock()
		for _, o := range offers {
			if !tried[o] {
				return o, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Offer{}, ctx.Err()
		}
	}
}
