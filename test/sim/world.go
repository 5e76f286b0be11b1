package sim

import (
	"fmt"
	"time"

	"trivet/internal/rt"
)

const (
	servers = 3
	quorum  = servers/2 + 1
	// defaultChaos is how long faults happen.
	defaultChaos = 150 * time.Second
)

// epoch is when every run begins.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Rig is what runs share: making a system of actors takes longer than many a
// run. It belongs to one goroutine.
type Rig struct {
	steppers [servers]*rt.Stepper
	systems  [servers]*rt.System
}

// NewRig makes a rig.
func NewRig() *Rig {
	g := &Rig{}
	for i := range servers {
		g.steppers[i] = rt.NewStepper(epoch)
		g.systems[i] = rt.NewSystem(rt.Options{Stepper: g.steppers[i]})
		g.steppers[i].Settle()
	}
	return g
}

// world is one run.
type world struct {
	Options
	// sched chooses what is next, net what happens to messages, chance when
	// there are faults and which, life what peers do.
	sched, net, chance, life dice

	now     time.Duration
	agenda  agenda
	servers [servers]*server
	links   [servers][servers]*link
	peers   []*peer
	writers []*configWriter
	watches []*watcher
	canon   canon
	trace   trace
	counts  Counts
	failure string
	// stopped says that no fault happens any more, quiet that nothing is lost or
	// slow either.
	stopped, quiet bool
	cut            cut
	calls          uint64
}

// Run makes one run.
func (g *Rig) Run(o Options) Result {
	o.Chaos = o.chaos()
	w := &world{
		Options: o, sched: newDice(o.Seed, 1), net: newDice(o.Seed, 2),
		chance: newDice(o.Seed, 3), life: newDice(o.Seed, 4),
		trace: trace{hash: fnvOffset},
	}
	w.canon.init(w)
	for i := range servers {
		g.steppers[i].Reset()
		w.servers[i] = newServer(w, i, g.steppers[i], g.systems[i])
	}
	for i := range servers {
		for j := range servers {
			w.links[i][j] = &link{w: w, from: w.servers[i], to: w.servers[j]}
		}
	}
	for _, s := range w.servers {
		s.start()
	}
	w.populate()
	w.play()
	w.end()
	return Result{
		Seed: o.Seed, At: w.now, Failure: w.failure, Last: w.trace.last(), Hash: w.trace.hash,
		Counts: w.counts,
	}
}

// play is the course of a run: disturbed, then brought to rest, then deserted.
func (w *world) play() {
	w.at(w.chance.between(0, time.Second), w.fault)
	if !w.goOn(w.Chaos) {
		return
	}
	w.calm()
	if !w.goOn(w.Chaos + restTime) {
		return
	}
	w.checkRest()
	for _, p := range w.peers {
		p.silence()
	}
	if w.goOn(w.Chaos + restTime + desertedTime) {
		w.checkDeserted()
	}
}

// goOn takes steps until the time has come; false: the run is over before,
// because something is wrong or it was not to last so long.
func (w *world) goOn(end time.Duration) bool {
	last := end
	if w.Options.until > 0 {
		last = min(end, w.Options.until)
	}
	for w.now < last && w.failure == "" {
		w.step(last)
	}
	return last == end && w.failure == ""
}

// step does one of the things that can be done, or lets time pass to the next.
func (w *world) step(end time.Duration) {
	w.agenda.collect(w.now)
	n := len(w.agenda.due)
	var runnable [servers]int
	for i, s := range w.servers {
		if s.alive && !s.paused {
			runnable[i] = s.stepper.Runnable()
			n += runnable[i]
		}
	}
	if n == 0 {
		w.pass(w.nextTime(end))
		return
	}
	if !w.quiet && w.sched.oneIn(100) {
		w.pass(w.now + w.sched.between(0, 3*time.Millisecond)) // all processors are busy
	}
	w.counts.Steps++
	k := w.sched.n(n)
	if k < len(w.agenda.due) {
		if e := w.agenda.take(k); e != nil {
			e.do()
		}
		return
	}
	k -= len(w.agenda.due)
	for i, s := range w.servers {
		if k < runnable[i] {
			s.stepper.Run(k)
			return
		}
		k -= runnable[i]
	}
}

// nextTime is when the next thing can be done.
func (w *world) nextTime(end time.Duration) time.Duration {
	next := end
	if at, ok := w.agenda.next(); ok {
		next = min(next, at)
	}
	for _, s := range w.servers {
		if !s.alive || s.paused {
			continue
		}
		if at, ok := s.stepper.NextTimer(); ok {
			next = min(next, at)
		}
	}
	return max(next, w.now)
}

func (w *world) pass(to time.Duration) {
	w.now = to
	for _, s := range w.servers {
		s.stepper.SetElapsed(to)
	}
}

// at lets something happen after d that no server has a part in.
func (w *world) at(d time.Duration, do func()) {
	w.agenda.add(&event{at: w.now + d, do: do})
}

// note puts a line into the trace.
func (w *world) note(what, who string, a, b uint64) {
	l := line{at: w.now, step: w.counts.Steps, what: what, who: who, a: a, b: b}
	w.trace.add(l)
	if w.Trace != nil {
		w.Trace(l.String())
	}
}

// violate notes that something is wrong; the first such thing ends the run.
func (w *world) violate(format string, args ...any) {
	if w.failure == "" {
		w.failure = fmt.Sprintf("at step %d, %v: ", w.counts.Steps, w.now) + fmt.Sprintf(format, args...)
	}
}

// end stops all actors, so that the rig can be used again.
func (w *world) end() {
	for _, s := range w.servers {
		s.stop()
	}
}
