package sim

import (
	"bytes"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/actors"
	"trivet/cluster/attach"
	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

// ringSize is small, so that watches fall behind it.
const ringSize = 64

// server is one server. What is below raft is lost in a crash.
type server struct {
	w       *world
	i       int
	name    string
	stepper *rt.Stepper
	system  *rt.System
	skew    time.Duration
	// lag bounds the time it takes to apply an entry.
	lag time.Duration

	alive, paused bool
	boot          int
	// waiting is what reached it while it stood still.
	waiting []*event
	log     log

	raft
	machine *fsm.Machine
	// shadow stands in for the machine where the projector looks, if hints are to
	// be lost.
	shadow  *fsm.Machine
	audit   *fsm.Cursor // of the checks
	batcher *replica.Batcher
	pumping bool
	ids     int
	clock   stampClock
	gateway gateway
	lead    lead
	view    *attach.View
	held    holdings
}

func newServer(w *world, i int, st *rt.Stepper, sys *rt.System) *server {
	s := &server{w: w, i: i, name: "s" + fmt.Sprint(i), stepper: st, system: sys}
	s.skew = w.chance.between(-time.Second, time.Second)
	st.SetSkew(s.skew)
	return s
}

// lives says whether the server is still in that life.
func (s *server) lives(boot int) bool { return s.alive && s.boot == boot }

// after lets something happen on the server, unless it dies before.
func (s *server) after(d time.Duration, do func()) {
	s.w.agenda.add(&event{at: s.w.now + d, server: s, boot: s.boot, do: do})
}

// hear lets something that a peer sent arrive after a while.
func (s *server) hear(usual time.Duration, do func()) {
	s.w.agenda.add(&event{at: s.w.now + s.w.delay(usual), server: s, boot: s.boot, peer: true, do: do})
}

// soon is after within a time.
func (s *server) soon(within time.Duration, do func()) {
	s.after(s.w.sched.between(0, within+1), do)
}

// start begins a life with what is on the disk.
func (s *server) start() {
	s.alive, s.paused = true, false
	s.raft = raft{heard: s.w.now, patience: electionTimeout + s.w.sched.between(0, electionTimeout)}
	s.lag = time.Millisecond
	s.machine = fsm.New(fsm.Options{RingSize: ringSize})
	if s.w.Plant == LoseHints {
		s.shadow = fsm.New(fsm.Options{RingSize: ringSize})
	}
	s.audit = s.machine.Watch(0)
	if s.log.snapshot != nil {
		s.restore()
	}
	s.commit = s.applied
	s.batcher = replica.NewBatcher(func() int64 { return s.clock.now(s) }, s.newID)
	s.pumping = false
	s.clock = stampClock{}
	s.gateway.reset(s)
	s.lead = lead{s: s}
	s.view = attach.NewView()
	s.held = nil
	s.w.connect(s)
	s.soon(100*time.Millisecond, s.tick)
	s.register()
}

// crash ends a life; only the disk remains.
func (s *server) crash() {
	s.w.note("crash", s.name, s.log.last(), s.applied)
	s.stop()
	s.boot++
	s.waiting = nil
	for _, o := range s.w.servers {
		if o != s {
			s.w.links[s.i][o.i].breaks()
		}
	}
}

// stop ends everything that the server does.
func (s *server) stop() {
	if !s.alive {
		return
	}
	s.alive, s.paused, s.leads = false, false, false
	s.lead.abandon()
	s.stepper.Settle()
	if n := s.stepper.Waiting(); n > 0 {
		s.w.violate("%s: %d workers of the leader did not end with it", s.name, n)
	}
}

// pause lets the server stand still; resume gives it what came meanwhile.
func (s *server) pause() {
	s.w.counts.Pauses++
	s.w.note("pause", s.name, 0, 0)
	s.paused = true
}

func (s *server) resume() {
	if !s.paused {
		return
	}
	s.w.note("resume", s.name, uint64(len(s.waiting)), 0)
	s.paused = false
	// Peers may be heard before anything about the log is.
	first := s.w.sched.between(0, 20*time.Millisecond)
	for _, e := range s.waiting {
		e.at = s.w.now
		if !e.peer {
			e.at += first
		}
		s.w.agenda.add(e)
	}
	s.waiting = nil
}

// newID makes an id that no other server and no other life makes.
func (s *server) newID() string {
	s.ids++
	return fmt.Sprintf("id-%d-%d-%d", s.i, s.boot, s.ids)
}

// apply applies an entry to the machine and has it checked.
func (s *server) apply(i uint64, e entry) []*commandv1.Result {
	if e.data == nil {
		return nil
	}
	if s.w.Plant == LoseEntry && s.i == 1 && s.w.chance.oneIn(100) {
		return nil
	}
	decoded, planted := new(commandv1.Entry), new(commandv1.Entry)
	for _, to := range []*commandv1.Entry{decoded, planted} {
		if err := proto.Unmarshal(e.data, to); err != nil {
			s.w.violate("%s: decode entry %d: %v", s.name, i, err)
			return nil
		}
	}
	s.w.plant(planted)
	before := s.machine.Root()
	results, err := s.machine.Apply(fsm.Position{Index: i, Term: e.term}, planted)
	if err != nil {
		s.w.violate("%s: apply entry %d: %v", s.name, i, err)
		return nil
	}
	s.overshadow(i, e)
	s.w.canon.applied(s, i, e.term, decoded.Commands, results, before, s.audit.Next())
	return results
}

// restore replaces the machine's state by that of the snapshot.
func (s *server) restore() {
	if err := s.machine.Restore(bytes.NewReader(s.log.snapshot)); err != nil {
		s.w.violate("%s: restore: %v", s.name, err)
		return
	}
	if s.shadow != nil {
		if err := s.shadow.Restore(bytes.NewReader(s.log.snapshot)); err != nil {
			s.w.violate("%s: restore shadow: %v", s.name, err)
			return
		}
	}
	s.applied = s.log.snapIndex
	s.audit = s.machine.WatchFrom(s.machine.Root())
	s.w.canon.restored(s)
	s.progressed()
}

// progressed tells those that wait for the state to come to a revision.
func (s *server) progressed() { s.gateway.progressed(s.machine.Root().Revision()) }

// propose queues commands; the proposal ends when the batcher says so.
func (s *server) propose(cmds []*commandv1.Command) (*replica.Proposal, error) {
	if !s.leads {
		return nil, replica.ErrNotLeader
	}
	p, err := s.batcher.Add(cmds)
	s.pump()
	return p, err
}

// pump moves what is queued into the log.
func (s *server) pump() {
	if s.pumping {
		return
	}
	s.pumping = true
	within := time.Millisecond
	if !s.w.quiet && s.w.sched.oneIn(4) {
		within = 50 * time.Millisecond // the disk is busy with other entries
	}
	s.soon(within, func() {
		s.pumping = false
		if b := s.batcher.Next(); b != nil {
			s.append(b)
			s.pump()
		}
	})
}

// finish ends a batch and lets those who wait for it know.
func (s *server) finish(b *replica.Batch, results []*commandv1.Result, err error) {
	s.batcher.Finish(b, results, err)
	s.pump()
	s.gateway.finished()
}

// stampClock is the leader's time: the wall clock at the beginning, then the
// monotonic one, and never before what was applied.
type stampClock struct {
	base int64
	at   time.Duration
	set  bool
}

func (c *stampClock) now(s *server) int64 {
	if !c.set {
		return s.wall()
	}
	return c.base + int64(s.w.now-c.at)
}

func (c *stampClock) lead(s *server) {
	now := s.wall()
	if c.set {
		now = max(now, c.now(s))
	}
	c.base, c.at, c.set = max(now, s.machine.Root().Meta().GetTime()), s.w.now, true
}

func (c *stampClock) raise(s *server) {
	if t := s.machine.Root().Meta().GetTime(); c.now(s) < t {
		c.base, c.at = t, s.w.now
	}
}

// wall is the server's wall clock.
func (s *server) wall() int64 { return epoch.Add(s.w.now + s.skew).UnixNano() }

// toucher is where keepalives go while the server leads; nil: it does not.
func (s *server) toucher() *actors.Leader {
	if s.lead.listening {
		return s.lead.tree
	}
	return nil
}
