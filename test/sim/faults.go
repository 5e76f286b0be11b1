package sim

import "time"

// fault does one bad thing and arranges for the next. Each of them ends by
// itself.
func (w *world) fault() {
	if w.stopped {
		return
	}
	// Now and then nothing happens for long enough for sessions to end, after a
	// longer disturbance too.
	next, long := w.chance.between(20*time.Millisecond, 4*time.Second), 30*time.Second
	if w.chance.oneIn(12) {
		next, long = w.chance.between(10*time.Second, 90*time.Second), time.Minute
	}
	if w.Plant == DeafLeader {
		w.pauseLeader()
		return
	}
	w.at(next, w.fault)
	if !w.mayFault() {
		return
	}
	s := w.servers[w.chance.n(servers)]
	if w.chance.oneIn(2) {
		s = w.someLeader(s)
	}
	switch w.chance.n(10) {
	case 0, 1:
		w.crash(s, w.span(w.chance.between(50*time.Millisecond, 20*time.Second)))
	case 2, 3:
		w.pause(s, w.span(w.chance.between(50*time.Millisecond, long)))
	case 4, 5:
		w.partition(s, w.span(w.chance.between(50*time.Millisecond, 15*time.Second)))
	case 6:
		w.slow(s, w.span(w.chance.between(time.Second, 10*time.Second)))
	case 7:
		w.transfer(s)
	case 8, 9:
		w.flap(s)
	}
}

// mayFault counts a fault, unless there were enough.
func (w *world) mayFault() bool {
	if w.stopped || w.Faults < 0 || w.Faults > 0 && w.counts.Faults >= w.Faults {
		return false
	}
	w.counts.Faults++
	return true
}

// unlucky lets something happen to a leader within a moment, once in so many
// times: right after it has proposed something, say.
func (w *world) unlucky(s *server, oneIn int) {
	if w.Plant == DeafLeader || !w.chance.oneIn(oneIn) || !w.mayFault() {
		return
	}
	s.soon(2*time.Millisecond, func() {
		switch w.chance.n(5) {
		case 0:
			w.crash(s, w.span(w.chance.between(50*time.Millisecond, 10*time.Second)))
		case 1:
			w.pause(s, w.span(w.chance.between(50*time.Millisecond, 10*time.Second)))
		case 2:
			w.partition(s, w.span(w.chance.between(50*time.Millisecond, 10*time.Second)))
		default:
			w.flap(s)
		}
	})
}

// stumble lets a server crash for a moment, once in so many times.
func (w *world) stumble(s *server, oneIn int) {
	if w.Plant != DeafLeader && w.chance.oneIn(oneIn) && w.mayFault() {
		s.soon(500*time.Millisecond, func() { w.crash(s, w.chance.between(0, 200*time.Millisecond)) })
	}
}

// span is short more often than long.
func (w *world) span(d time.Duration) time.Duration {
	if w.chance.oneIn(2) {
		return d / 10
	}
	return d
}

// pauseLeader is the only fault of runs with a DeafLeader: one long pause, which
// nothing else disturbs and in which peers that have no other fate go on sending
// keepalives to the server that stands still.
func (w *world) pauseLeader() {
	w.at(10*time.Second, func() {
		if w.mayFault() {
			w.pause(w.someLeader(w.servers[0]), w.chance.between(30*time.Second, 50*time.Second))
		}
	})
}

// someLeader is a server that believes to lead, or s.
func (w *world) someLeader(s *server) *server {
	for _, o := range w.servers {
		if o.alive && o.leads && !o.paused {
			return o
		}
	}
	return s
}

func (w *world) crash(s *server, d time.Duration) {
	if !s.alive {
		return
	}
	s.crash()
	w.at(d, func() {
		if !s.alive {
			w.counts.Restarts++
			w.note("restart", s.name, s.log.last(), s.log.snapIndex)
			s.start()
		}
	})
}

func (w *world) pause(s *server, d time.Duration) {
	if !s.alive || s.paused {
		return
	}
	s.pause()
	boot := s.boot
	w.at(d, func() {
		if s.lives(boot) {
			s.resume()
		}
	})
}

// partition keeps a server from the others, in both directions or in one, or
// from one of them.
func (w *world) partition(s *server, d time.Duration) {
	w.counts.Partitions++
	kind, other := w.chance.n(4), w.chance.n(servers)
	w.note("partition", s.name, uint64(kind), uint64(other))
	for o := range servers {
		if o == s.i || kind == 3 && o != other {
			continue
		}
		if kind != 1 {
			w.cut[s.i][o] = true
		}
		if kind != 2 {
			w.cut[o][s.i] = true
		}
	}
	w.at(d, func() {
		w.note("heal", s.name, 0, 0)
		for o := range servers {
			w.cut[s.i][o], w.cut[o][s.i] = false, false
		}
	})
}

// slow lets a server lag behind in what it applies.
func (w *world) slow(s *server, d time.Duration) {
	s.lag = w.chance.between(50*time.Millisecond, time.Second)
	w.at(d, func() { s.lag = time.Millisecond })
}

// transfer lets a server stand for election although nobody is missing.
func (w *world) transfer(s *server) {
	if s.alive && !s.paused && !s.leads {
		s.elect()
	}
}

// flap lets a leader lose its office and win it back before those on it know.
func (w *world) flap(s *server) {
	if !s.alive || s.paused || !s.leads {
		return
	}
	for i := range 1 + w.chance.n(3) {
		w.at(time.Duration(i)*w.chance.between(0, 20*time.Millisecond), func() {
			if s.alive && !s.paused && s.leads {
				s.stepDown()
				s.elect()
			}
		})
	}
}

// calm ends all faults.
func (w *world) calm() {
	w.stopped, w.quiet = true, true
	w.note("calm", "", 0, 0)
	w.cut = cut{}
	for _, s := range w.servers {
		s.lag = time.Millisecond
		if !s.alive {
			w.counts.Restarts++
			s.start()
		}
		s.resume()
	}
	for _, p := range w.peers {
		p.settle()
	}
}
