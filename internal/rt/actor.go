package rt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// DefaultCapacity is the mailbox capacity of a Spec that names none: enough
// for the hints and calls that one entity gets in a burst.
const DefaultCapacity = 64

// A Behavior is what an actor does. Each incarnation has a fresh one, made by
// Spec.New. The runtime calls one method at a time, on changing goroutines.
//
// M is usually a sealed interface with one type per message.
type Behavior[M any] interface {
	// Start is called once, before any message. An error is a failure.
	Start(*Ctx[M]) error
	// Handle is called for each message. An error is a failure; a message
	// that could not be served is not one. A failed message is not delivered
	// again.
	Handle(*Ctx[M], M) error
	// Stop is called last and once, after the workers and children have
	// ended, also when Start has failed halfway. It releases what Start and
	// Handle acquired. The context is cancelled by then; Go, After and Spawn
	// have no effect. A panic is logged and swallowed. An actor that is
	// stopped before its Start has neither.
	Stop(*Ctx[M], Reason)
}

// A Spec says how to make an actor.
type Spec[M any] struct {
	// Name is the last part of the dotted name in logs; required, need not be
	// unique.
	Name string
	// Kind is the label in Stats. It should be one of a few words; "actor" if
	// empty.
	Kind string
	// Capacity bounds the mailbox, in messages; DefaultCapacity if not
	// positive. The memory grows with use, up to 16 bytes for each.
	Capacity int
	// Lost, if set, gets each message that was accepted and will not be
	// handled because the actor stops. It is called where the actor runs.
	Lost func(M)
	// Restart says what to do after a failure.
	Restart RestartPolicy
	// New makes the behaviour of each incarnation; required.
	New func() Behavior[M]
}

// A Parent is where actors are spawned: a *System, a *Group, or the *Ctx of an
// actor, whose children stop before it stops or restarts.
type Parent interface {
	// node is the parent itself.
	node() *core
	// adopt spawns child under the parent.
	adopt(child *core) error
}

// Spawn starts an actor and returns without waiting for its Start. The error
// is ErrStopped if the parent is stopping, or says what is wrong with spec.
// Below a *System or *Group, Spawn may be called from anywhere; below a *Ctx,
// in Start and Handle of that actor only.
func Spawn[M any](parent Parent, spec Spec[M]) (Ref[M], error) {
	switch {
	case spec.Name == "":
		return Ref[M]{}, errors.New("spawn actor: no name")
	case spec.New == nil:
		return Ref[M]{}, fmt.Errorf("spawn %s: no behaviour", spec.Name)
	}
	if spec.Kind == "" {
		spec.Kind = "actor"
	}
	if spec.Capacity <= 0 {
		spec.Capacity = DefaultCapacity
	}
	p := parent.node()
	c := &cell[M]{
		core:     newCore(p.system, p, spec.Name, spec.Kind, spec.Capacity),
		newFunc:  spec.New,
		lostFunc: spec.Lost,
	}
	c.core.hooks = c
	c.core.policy = spec.Restart.normal()
	if err := spawnBelow(parent, c.core); err != nil {
		return Ref[M]{}, err
	}
	return Ref[M]{c}, nil
}

func spawnBelow(parent Parent, child *core) error {
	child.kind.live.Add(1)
	if err := parent.adopt(child); err != nil {
		child.kind.live.Add(-1)
		return fmt.Errorf("spawn %s: %w", child.path(), err)
	}
	return nil
}

// spawnWith starts child as a child of the actor whose context ctx is.
// It must run on that actor's goroutine.
func (c *core) spawnWith(ctx actor.SpawnerContext) error {
	// Names of the library have to be unique and ours need not be.
	id := c.system.library.ProcessRegistry.NextId()
	_, err := ctx.SpawnNamed(c.props(), id)
	return err
}

// cell is the typed part of an actor.
type cell[M any] struct {
	*core
	newFunc  func() Behavior[M]
	lostFunc func(M)

	behavior Behavior[M]
	ctx      *Ctx[M]
}

func (c *cell[M]) start(inc *incarnation) error {
	c.ctx = &Ctx[M]{cell: c, inc: inc}
	c.behavior = nil
	c.behavior = c.newFunc()
	if c.behavior == nil {
		return errors.New("no behaviour was made")
	}
	return c.behavior.Start(c.ctx)
}

func (c *cell[M]) handle(msg any) error {
	m, _ := msg.(M) // fails only for a nil M, whose zero value it is
	return c.behavior.Handle(c.ctx, m)
}

func (c *cell[M]) stop(r Reason) {
	if c.behavior != nil {
		b := c.behavior
		c.behavior = nil
		b.Stop(c.ctx, r)
	}
}

func (c *cell[M]) lost(msg any) {
	if c.lostFunc != nil {
		m, _ := msg.(M)
		c.lostFunc(m)
	}
}

// Ctx is what a Behavior has of its actor. It belongs to one incarnation; when
// that is over, Go and After have no effect and Spawn fails.
type Ctx[M any] struct {
	cell *cell[M]
	inc  *incarnation
	log  atomic.Pointer[slog.Logger]
}

// Self returns the actor's Ref. It stays the same over restarts.
func (c *Ctx[M]) Self() Ref[M] { return Ref[M]{c.cell} }

// Name returns the dotted name.
func (c *Ctx[M]) Name() string { return c.cell.path() }

// Context is cancelled when the incarnation fails, or as soon as the actor is
// asked to stop. Push and Ask refuse it: an actor must not wait. A worker uses
// the context that it is given.
func (c *Ctx[M]) Context() context.Context {
	_, inside := c.inc.contexts()
	return inside
}

// Logger returns the system's logger with the actor's name.
func (c *Ctx[M]) Logger() *slog.Logger {
	if l := c.log.Load(); l != nil {
		return l
	}
	l := c.cell.logger()
	c.log.Store(l)
	return l
}

// Go runs f in a goroutine and delivers what it returns to Handle, even when
// the mailbox is full. If the incarnation ends before f does, ctx is
// cancelled, the actor waits for f before it goes on (without a goroutine of
// its own), and the result is dropped and counted. A panic in f is a failure
// of the actor. Name is for logs.
//
// The number of workers is the actor's own business; one that starts a worker
// for each message bounds them itself.
func (c *Ctx[M]) Go(name string, f func(ctx context.Context) M) {
	c.inc.run(name, func(ctx context.Context) any { return f(ctx) })
}

// After delivers m to Handle after d, even when the mailbox is full, unless
// the timer is stopped or the incarnation ends first.
func (c *Ctx[M]) After(d time.Duration, m M) *Timer { return c.inc.after(d, m) }

// StopSelf asks the actor to stop after the current message. What is queued
// goes to Spec.Lost.
func (c *Ctx[M]) StopSelf() { c.cell.requestStop() }

func (c *Ctx[M]) node() *core { return c.cell.core }

func (c *Ctx[M]) adopt(child *core) error {
	if !c.cell.inCall.Load() {
		return ErrOutsideActor
	}
	if c.inc.isOver() {
		return ErrStopped
	}
	return child.spawnWith(c.cell.mb.invoker.(actor.SpawnerContext))
}
