package rt

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// Reason says why Behavior.Stop is called.
type Reason uint8

const (
	// ReasonStopped: the actor was asked to stop, itself or with its parent.
	ReasonStopped Reason = iota
	// ReasonRestarting: this incarnation failed and the next one follows.
	ReasonRestarting
	// ReasonFailed: the actor failed too often and is given up.
	ReasonFailed
)

// String returns the reason as a word for logs.
func (r Reason) String() string {
	switch r {
	case ReasonStopped:
		return "stopped"
	case ReasonRestarting:
		return "restarting"
	case ReasonFailed:
		return "failed"
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

// hooks is the part of an actor that knows its message type. They run the
// user's code, so each call recovers.
type hooks interface {
	start(*incarnation) error
	handle(msg any) error
	stop(Reason)
	lost(msg any)
}

// core is an actor or group without its message type: what the library knows
// as the actor, and the owner of its mailbox.
type core struct {
	mb     mailbox
	hooks  hooks
	system *System
	parent *core // nil for the root
	name   string
	kind   *counters
	policy RestartPolicy // of an actor
	group  *groupState   // of a group, else nil

	// inCall is set while Start or Handle runs.
	inCall atomic.Bool
	// begun says that hooks.start was called, so hooks.stop is owed.
	begun bool

	failures history // touched by the parent only, in HandleFailure

	inc       *incarnation  // guarded by mb.mu; nil before the first Start
	backoff   stopper       // guarded by mb.mu; the restart to come; nil: none
	cause     error         // guarded by mb.mu; why the actor was given up
	stopAsked bool          // guarded by mb.mu; by requestStop
	ended     bool          // guarded by mb.mu
	done      chan struct{} // guarded by mb.mu; made when asked for
}

var _ actor.Actor = (*core)(nil)

func newCore(system *System, parent *core, name, kind string, capacity int) *core {
	c := &core{system: system, parent: parent, name: name, kind: system.counters(kind)}
	c.mb = mailbox{owner: c, kind: c.kind, capacity: capacity}
	return c
}

// props describes c to the library. Every incarnation is c again; the
// behaviour is made in start.
func (c *core) props() *actor.Props {
	options := []actor.PropsOption{
		actor.WithMailbox(func() actor.Mailbox { return &c.mb }),
		actor.WithSupervisor(strategy{}),
	}
	if d := c.system.exec.dispatcher(c.group != nil); d != nil {
		options = append(options, actor.WithDispatcher(d))
	}
	return actor.PropsFromProducer(func() actor.Actor { return c }, options...)
}

// path is the dotted name.
func (c *core) path() string {
	if c.parent == nil || c.parent.parent == nil {
		return c.name
	}
	return c.parent.path() + "." + c.name
}

func (c *core) logger() *slog.Logger {
	return c.system.logger.With("actor", c.path())
}

// Receive is called by the library, on the goroutine of the mailbox.
// Restarting and Stopping are of no interest: by then the incarnation is over
// already, and its behaviour is told once its children have stopped too.
func (c *core) Receive(ctx actor.Context) {
	switch ctx.Message().(type) {
	case deliverySignal:
		c.deliver()
	case *actor.Started:
		c.begin()
	case *actor.Stopped:
		c.end()
	}
}

// begin starts an incarnation, the first or a further one.
func (c *core) begin() {
	if c.isStopping() {
		return
	}
	if c.begun {
		c.kind.restarts.Add(1)
		c.callStop(ReasonRestarting)
	}
	inc := &incarnation{core: c}
	c.mb.mu.Lock()
	inc.over = c.mb.stopping
	c.inc = inc
	c.mb.mu.Unlock()
	c.begun = true
	if err := c.call(func() error { return c.hooks.start(inc) }); err != nil {
		c.fail(fmt.Errorf("start: %w", err))
	}
}

// deliver handles mb.current.
func (c *core) deliver() {
	it := c.mb.current
	if it.err != nil {
		c.fail(it.err)
		return
	}
	msg := it.msg
	if a, ok := msg.(*asked); ok {
		msg = a.msg
	}
	if err := c.call(func() error { return c.hooks.handle(msg) }); err != nil {
		c.fail(fmt.Errorf("handle: %w", err))
	}
}

// call runs user code and turns a panic into an error.
func (c *core) call(f func() error) (err error) {
	c.inCall.Store(true)
	defer func() {
		c.inCall.Store(false)
		if v := recover(); v != nil {
			err = newPanicError(v)
		}
	}()
	return f()
}

// fail ends the incarnation and hands the decision to the supervisor. It runs
// on the goroutine of the mailbox.
func (c *core) fail(err error) {
	c.kind.failures.Add(1)
	if a, ok := c.mb.current.msg.(*asked); ok {
		a.fail(fmt.Errorf("%w: %w", ErrFailed, err))
	}
	c.mb.mu.Lock()
	decided := c.mb.stopping || c.inc != nil && c.inc.over
	if !decided {
		c.mb.suspended = true
	}
	c.mb.mu.Unlock()
	if decided {
		c.logger().Warn("actor failed while it stops or restarts", failureAttrs(err)...)
		return
	}
	c.halt()
	c.mb.invoker.EscalateFailure(&failure{child: c, err: err}, nil)
}

// end is the last thing an actor does.
func (c *core) end() {
	c.mb.mu.Lock()
	reason := ReasonStopped
	if c.cause != nil {
		reason = ReasonFailed
	}
	c.mb.mu.Unlock()
	if c.begun {
		c.callStop(reason)
	}
	c.kind.live.Add(-1)
	c.mb.mu.Lock()
	c.ended = true
	if c.done != nil {
		close(c.done)
	}
	c.mb.mu.Unlock()
}

// callStop runs the Stop hook. Neither a panic nor a Goexit in it may reach
// the library, which would restart a stopping actor or leave its parent
// waiting forever; Goexit can only be kept to a goroutine.
func (c *core) callStop(r Reason) {
	c.system.exec.isolated(func() {
		defer func() {
			if v := recover(); v != nil {
				err := newPanicError(v)
				c.logger().Error("actor panicked in its stop hook",
					append(failureAttrs(err), "reason", r.String())...)
			}
		}()
		c.hooks.stop(r)
	})
}

// halt ends the incarnation: its context and timers are cancelled, what is on
// the reserved path is discarded, its workers' results will be dropped.
func (c *core) halt() {
	c.mb.mu.Lock()
	backoff := c.backoff
	c.backoff = nil
	inc := c.inc
	var cancel context.CancelFunc
	var inner []item
	if inc != nil && !inc.over {
		cancel = inc.finish()
		inner = c.mb.discarded()
	}
	c.mb.mu.Unlock()
	if backoff != nil {
		backoff.Stop()
	}
	if cancel != nil {
		cancel()
	}
	c.discard(inner)
}

// lost is called by the mailbox for an accepted message that nobody handles.
func (c *core) lost(msg any) {
	c.kind.lost.Add(1)
	if a, ok := msg.(*asked); ok {
		a.fail(ErrStopped)
		msg = a.msg
	}
	defer func() {
		if v := recover(); v != nil {
			err := newPanicError(v)
			c.logger().Error("actor panicked in its lost hook", failureAttrs(err)...)
		}
	}()
	c.hooks.lost(msg)
}

// discard is called for items of the reserved path that nobody handles.
func (c *core) discard(items []item) {
	for _, it := range items {
		if s, ok := it.msg.(*spawn); ok {
			s.reply <- ErrStopped
			continue
		}
		c.kind.stale.Add(1)
		if it.err != nil {
			c.logger().Warn("worker failed after its actor", failureAttrs(it.err)...)
		}
	}
}

// crashed is called for a panic or Goexit outside a Behavior's reach.
func (c *core) crashed(err error) {
	if c.group != nil {
		c.logger().Error("supervisor failed", failureAttrs(err)...)
		return
	}
	c.fail(err)
	c.mb.current = item{}
}
