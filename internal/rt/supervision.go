package rt

import (
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// failure is what a child tells its supervisor. The library carries it.
type failure struct {
	child *core
	err   error
	ask   verdict
}

// verdict is what the failed child asks for.
type verdict uint8

const (
	askRestart    verdict = iota // an actor: as its RestartPolicy says
	askQuarantine                // a group: stop me
	askEscalate                  // a group: whatever you do about it
)

// strategy is the supervision of every actor and group. It has no state: what
// it remembers is in the cores.
type strategy struct{}

// HandleFailure decides about a child that has failed and is suspended. The
// library calls it on the goroutine of the parent.
func (strategy) HandleFailure(
	_ *actor.ActorSystem, supervisor actor.Supervisor, pid *actor.PID,
	_ *actor.RestartStatistics, reason, _ any,
) {
	f, ok := reason.(*failure)
	if !ok { // every mailbox is ours and sends no other reason
		supervisor.StopChildren(pid)
		return
	}
	if f.child.isStopping() {
		return // nothing is left to decide
	}
	s := supervision{
		Supervisor: supervisor, parent: f.child.parent, child: f.child, pid: pid, err: f.err,
	}
	switch f.ask {
	case askRestart:
		s.restart()
	case askQuarantine:
		s.quarantine()
	case askEscalate:
		s.escalate()
	}
}

// supervision is one failure as its supervisor looks at it.
type supervision struct {
	actor.Supervisor
	parent, child *core
	pid           *actor.PID
	err           error
}

// restart brings the child back after a delay, or gives it up.
func (s *supervision) restart() {
	exec := s.child.system.exec
	delay, ok := s.child.failures.failed(s.child.policy, exec.now(), exec.jitter())
	if ok {
		s.child.logger().Warn("actor failed and will restart",
			append(failureAttrs(s.err), "delay", delay, "failures", len(s.child.failures))...)
		s.child.restartAfter(delay, func() { s.RestartChildren(s.pid) })
		return
	}
	if s.child.policy.OnExceed == Escalate {
		s.child.logger().Error("actor failed too often and escalates", failureAttrs(s.err)...)
		s.escalate()
		return
	}
	s.quarantine()
}

// quarantine stops the child for good. If that makes too many, the parent
// cannot be said to work any more.
func (s *supervision) quarantine() {
	s.child.logger().Error("actor is quarantined", failureAttrs(s.err)...)
	s.child.kind.quarantined.Add(1)
	s.stop()
	g := s.parent.group
	if g == nil {
		return
	}
	n, total := g.quarantined(s.parent.system.exec.now(), len(s.Children()))
	if n < g.limit(total) {
		return
	}
	g.times = nil // the next escalation needs new reasons
	err := fmt.Errorf("%s: %d of %d children quarantined within %s, the last one: %w",
		s.parent.path(), n, total, g.policy.Window, s.reason())
	if g.policy.OnExceed == Quarantine {
		s.passOn(err, askQuarantine)
		return
	}
	s.passOn(err, askEscalate)
}

// escalate makes the child's failure the parent's.
func (s *supervision) escalate() {
	g := s.parent.group
	if g != nil && g.policy.OnExceed == Quarantine {
		s.quarantine() // the group is where it ends
		return
	}
	if s.child.group == nil {
		s.stop()
	}
	if g == nil {
		s.parent.fail(fmt.Errorf("child: %w", s.reason()))
		return
	}
	s.passOn(s.reason(), askEscalate)
}

// reason is the failure with the name of its actor. That of a group has it.
func (s *supervision) reason() error {
	if s.child.group != nil {
		return s.err
	}
	return fmt.Errorf("%s: %w", s.child.path(), s.err)
}

// passOn hands the matter to the parent's own supervisor, or out of the tree.
func (s *supervision) passOn(err error, ask verdict) {
	if s.parent.parent == nil {
		s.parent.system.escalated(s.child.name, err)
		return
	}
	s.EscalateFailure(&failure{child: s.parent, err: err, ask: ask}, nil)
}

func (s *supervision) stop() {
	s.child.giveUp(s.err)
	s.StopChildren(s.pid)
}

// restartAfter arranges the restart of c, unless c is stopping.
func (c *core) restartAfter(d time.Duration, restart func()) {
	c.mb.mu.Lock()
	defer c.mb.mu.Unlock()
	if !c.mb.stopping {
		c.backoff = c.system.exec.after(d, restart)
	}
}

// giveUp notes why c is stopped, for Ref.Err and the Stop hook, unless it was
// asked to stop before.
func (c *core) giveUp(err error) {
	c.mb.mu.Lock()
	defer c.mb.mu.Unlock()
	if !c.mb.stopping {
		c.cause = err
	}
}
