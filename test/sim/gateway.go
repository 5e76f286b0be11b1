package sim

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/cluster/replica"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// holdCall is how long a server keeps trying to get a write to a leader.
	holdCall = 5 * time.Second
	// attemptFor bounds the wait for one answer of the leader.
	attemptFor = 2 * time.Second
	retryPause = 50 * time.Millisecond
)

// reply is what a caller hears; an error leaves open whether it happened.
type reply func(res *commandv1.Result, err error)

var errUnknown = errors.New("the outcome is unknown")

// gateway is how a server takes writes and passes them to whoever leads.
type gateway struct {
	s *server
	// next and open number the writes whose callers do not.
	next, low uint64
	open      map[uint64]bool
	// here are the proposals at this server, shown those that wait for the state.
	here  []*proposed
	shown []*shownAt
}

// proposed is a write that waits for the own batcher.
type proposed struct {
	p     *replica.Proposal
	reply reply
}

// shownAt is an answer that waits for the own state to show it.
type shownAt struct {
	revision uint64
	do       func()
}

func (g *gateway) reset(s *server) { *g = gateway{s: s, next: 1, low: 1, open: make(map[uint64]bool)} }

// call is one write at the gateway.
type call struct {
	g      *gateway
	boot   int // the life of the server in which it was taken
	cmd    *commandv1.Command
	number uint64 // ours; 0: the caller's
	end    time.Duration
	tries  int
	done   bool
	reply  reply
}

// call takes a write. The answer comes once, unless the server dies.
func (g *gateway) call(cmd *commandv1.Command, r reply) {
	c := &call{g: g, boot: g.s.boot, cmd: cmd, end: g.s.w.now + holdCall, reply: r}
	if cmd.GetRequestId() == nil {
		c.number = g.next
		g.next++
		g.open[c.number] = true
		cmd.RequestId = &commandv1.RequestId{
			Writer: fmt.Sprintf("server/%s/boot%d", g.s.name, g.s.boot), Number: c.number, Lowest: g.lowest(),
			PayloadDigest: fmt.Append(nil, g.s.i, g.s.boot, c.number),
		}
	}
	c.try()
}

// lowest is the lowest number that somebody waits for.
func (g *gateway) lowest() uint64 {
	for g.low < g.next && !g.open[g.low] {
		g.low++
	}
	return g.low
}

// try sends the write to whoever leads, and again when no answer comes.
func (c *call) try() {
	s := c.g.s
	if c.done || !s.lives(c.boot) {
		return
	}
	if s.w.now > c.end {
		c.finish(nil, errUnknown)
		return
	}
	c.tries++
	try := c.tries
	leader := s.leader
	again := func() {
		if !c.done && c.tries == try {
			c.try()
		}
	}
	answer := func(res *commandv1.Result, err error) {
		switch {
		case c.done || !s.lives(c.boot) || err != nil && c.tries != try:
		case err != nil:
			s.after(retryPause, again)
		default:
			c.finish(res, nil)
		}
	}
	cmd := proto.CloneOf(c.cmd)
	switch leader {
	case nil:
		s.after(retryPause, again)
	case s:
		c.g.local(cmd, answer)
		s.after(attemptFor, again)
	default:
		s.send(leader, 10*time.Millisecond, func() {
			leader.gateway.local(cmd, func(res *commandv1.Result, err error) {
				leader.send(s, 10*time.Millisecond, func() { answer(res, err) })
			})
		})
		s.after(attemptFor, again)
		s.w.stumble(s, 100)
	}
}

// local proposes at this server.
func (g *gateway) local(cmd *commandv1.Command, r reply) {
	p, err := g.s.propose([]*commandv1.Command{cmd})
	if err != nil {
		r(nil, err)
		return
	}
	g.here = append(g.here, &proposed{p, r})
}

// finished looks which proposals have ended.
func (g *gateway) finished() {
	kept := g.here[:0]
	var ended []*proposed
	for _, x := range g.here {
		if isClosed(x.p.Done()) {
			ended = append(ended, x)
		} else {
			kept = append(kept, x)
		}
	}
	clear(g.here[len(kept):])
	g.here = kept
	for _, x := range ended {
		results, err := x.p.Outcome()
		if err != nil {
			x.reply(nil, err)
			continue
		}
		x.reply(results[0], nil)
	}
}

// finish answers the caller, once the own state shows what was written.
func (c *call) finish(res *commandv1.Result, err error) {
	c.done = true
	delete(c.g.open, c.number)
	if err != nil {
		c.g.s.w.counts.Unknown++
		c.reply(nil, err)
		return
	}
	c.g.whenShown(res.GetRevision(), func() { c.reply(res, nil) })
}

func (g *gateway) whenShown(revision uint64, do func()) {
	if g.s.machine.Root().Revision() >= revision {
		do()
		return
	}
	g.shown = append(g.shown, &shownAt{revision, do})
}

func (g *gateway) progressed(revision uint64) {
	kept := g.shown[:0]
	var ready []func()
	for _, x := range g.shown {
		if x.revision <= revision {
			ready = append(ready, x.do)
		} else {
			kept = append(kept, x)
		}
	}
	clear(g.shown[len(kept):])
	g.shown = kept
	for _, do := range ready {
		do()
	}
}

// own proposes a command of the server itself, without a number, and says when
// that is over, however it ended.
func (g *gateway) own(cmd *commandv1.Command, over func()) {
	cmd.Version = fsm.CommandVersion
	g.local(cmd, func(*commandv1.Result, error) { g.s.soon(10*time.Millisecond, over) })
}

// register writes the server's row, so that answers kept for its earlier lives
// are dropped.
func (s *server) register() {
	row, _ := s.machine.Root().Server(s.name)
	seen := row.GetModifyRevision()
	s.gateway.call(&commandv1.Command{
		Version: fsm.CommandVersion, Identity: "spiffe://sim/server/" + s.name,
		Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{IfModifyRevision: &seen, Server: &commandv1.ServerRow{
			Id: s.name, Name: s.name, Address: s.name + ":7400", BootId: fmt.Sprintf("boot%d", s.boot),
			CommandVersion: fsm.CommandVersion, StartedAt: s.wall(),
		}}},
	}, func(res *commandv1.Result, err error) {
		if err != nil || res.GetCode() != commandv1.Code_CODE_OK {
			s.after(time.Second, s.register)
		}
	})
}

// touch passes a keepalive to whoever leads and answers when the leader has it
// or does not know the session; it is held as long as that takes.
func (g *gateway) touch(session string, done func(known bool)) {
	s, boot, over := g.s, g.s.boot, false
	answer := func(known bool) {
		if !over && s.lives(boot) {
			over = true
			done(known)
		}
	}
	switch leader := s.leader; leader {
	case nil:
	case s:
		g.take(session, answer)
	default:
		s.send(leader, 10*time.Millisecond, func() {
			leader.gateway.take(session, func(known bool) {
				leader.send(s, 10*time.Millisecond, func() { answer(known) })
			})
		})
	}
	s.after(s.w.net.between(attemptFor/20, attemptFor), func() {
		if !over {
			over = true
			g.touch(session, done)
		}
	})
}

// take gives a keepalive to the leader's tree here, and answers once a quorum,
// asked after that, has confirmed that this server leads.
func (g *gateway) take(session string, answer func(known bool)) {
	s := g.s
	t := s.toucher()
	if t == nil {
		return
	}
	known := t.Touch(session, time.Time{})
	if s.w.Plant == DeafLeader {
		answer(known)
		return
	}
	s.after(s.w.delay(5*time.Millisecond), func() {
		if s.confirmed() {
			answer(known)
		}
	})
}
