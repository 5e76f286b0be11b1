package sim

import (
	"fmt"
	"slices"
	"time"

	"trivet/cluster/attach"
)

// cut says from which server to which nothing arrives.
type cut [servers][servers]bool

// path says whether something sent by a now would arrive at b now.
func (w *world) path(a, b *server) bool { return !w.cut[a.i][b.i] }

// send lets something happen at another server, usually within a time, unless
// the message is lost. It may happen twice, and in any order with what else was
// sent.
func (s *server) send(o *server, usual time.Duration, do func()) {
	w := s.w
	if !o.alive {
		return
	}
	n := 1
	if !w.quiet {
		switch w.net.n(100) {
		case 0, 1:
			return
		case 2:
			n = 2
		}
	}
	for range n {
		o.after(w.delay(usual), func() {
			if w.path(s, o) {
				do()
			}
		})
	}
}

// delay is the time on the way of one message.
func (w *world) delay(usual time.Duration) time.Duration {
	if !w.quiet {
		switch w.net.n(100) {
		case 0, 1, 2:
			return w.net.between(usual, 200*time.Millisecond)
		case 3:
			return w.net.between(usual, 3*time.Second)
		}
	}
	return w.net.between(0, usual)
}

// holding is the streams of one session at a server.
type holding struct {
	session     string
	dial, watch int
	ended       bool
	seq         uint64 // of the peer's last word
}

// holdings are sorted by session.
type holdings []holding

func (h *holdings) at(session string) *holding {
	i, ok := slices.BinarySearchFunc(*h, session, func(x holding, id string) int {
		switch {
		case x.session < id:
			return -1
		case x.session > id:
			return 1
		}
		return 0
	})
	if !ok {
		*h = slices.Insert(*h, i, holding{session: session})
	}
	return &(*h)[i]
}

func (h holding) attachment() attach.Attachment {
	return attach.Attachment{
		SessionID: h.session, DialStreams: h.dial, WatchStreams: h.watch,
		EndedByPeer: h.ended && h.dial+h.watch == 0,
	}
}

// hold sets the streams of a session at this server and tells everybody.
func (s *server) hold(session string, dial, watch int, endedByPeer bool) {
	h := s.held.at(session)
	h.dial, h.watch, h.ended = dial, watch, endedByPeer
	a := []attach.Attachment{h.attachment()}
	s.w.note("streams", s.name+" "+session, uint64(dial), uint64(watch))
	for _, o := range s.w.servers {
		if o == s {
			s.view.Set(s.name, s.bootID(), false, a)
		} else {
			s.w.links[s.i][o.i].say(false, a)
		}
	}
}

func (s *server) bootID() string { return fmt.Sprintf("boot%d", s.boot) }

// connect makes new connections from and to a server that has started.
func (w *world) connect(s *server) {
	for _, o := range w.servers {
		if o != s && o != nil {
			w.links[s.i][o.i].reset()
			w.links[o.i][s.i].reset()
		}
	}
}

// link is the connection on which one server tells another about its streams:
// in order, complete, until it breaks.
type link struct {
	w        *world
	from, to *server
	// conn counts the connections; up says that there is one.
	conn int
	up   bool
	// queue is what is on the way, in order.
	queue []report
}

// report is one message of a link.
type report struct {
	full bool
	atts []attach.Attachment
}

// reset lets the link begin anew soon.
func (l *link) reset() {
	l.conn++
	l.up, l.queue = false, nil
	l.redial()
}

func (l *link) redial() {
	conn := l.conn
	l.w.at(l.w.net.between(20*time.Millisecond, 500*time.Millisecond), func() {
		if l.conn != conn {
			return
		}
		if !l.from.alive || !l.to.alive {
			return // the start of either resets the link
		}
		if l.from.paused || l.to.paused || !l.w.path(l.from, l.to) || !l.w.path(l.to, l.from) {
			l.redial()
			return
		}
		l.up = true
		var all []attach.Attachment
		for _, h := range l.from.held {
			if h.dial+h.watch > 0 || h.ended {
				all = append(all, h.attachment())
			}
		}
		l.say(true, all)
	})
}

// say sends a message after those before it. If it cannot arrive, the
// connection breaks.
func (l *link) say(full bool, atts []attach.Attachment) {
	if !l.up || !l.to.alive {
		return
	}
	conn, boot := l.conn, l.from.bootID()
	l.queue = append(l.queue, report{full, atts})
	// Whichever of them comes first brings the oldest.
	l.to.after(l.w.delay(3*time.Millisecond), func() {
		switch {
		case l.conn != conn:
		case !l.w.path(l.from, l.to) || !l.w.quiet && l.w.net.oneIn(50):
			l.breaks()
		default:
			r := l.queue[0]
			l.queue = l.queue[1:]
			l.to.view.Set(l.from.name, boot, r.full, r.atts)
		}
	})
}

// breaks ends the connection; the other end finds out after a while.
func (l *link) breaks() {
	l.reset()
	conn := l.conn
	l.to.after(l.w.net.between(0, 3*time.Second), func() {
		if l.conn == conn && !l.up {
			l.to.view.Drop(l.from.name)
		}
	})
}
