package rt

import (
	"context"
	"fmt"
	"time"
)

// incarnation is one life of an actor, from Start to failure or stop. It owns
// the context, the timers and the workers of that life. A value that belongs
// to an incarnation which is over has no effect.
type incarnation struct {
	core *core

	over   bool               // guarded by core.mb.mu
	ctx    context.Context    // guarded by core.mb.mu until made; made when asked for
	inside context.Context    // as ctx, marked as used by the actor itself
	cancel context.CancelFunc // of ctx
	timers *Timer             // guarded by core.mb.mu; list of those that have not fired
}

// insideKey marks a context that an actor got from Ctx.Context.
type insideKey struct{}

// isInside reports whether ctx comes from Ctx.Context, so that waiting with it
// would hold up an actor.
func isInside(ctx context.Context) bool {
	return ctx.Value(insideKey{}) != nil
}

// contexts returns the context for workers and the one for the actor itself.
func (inc *incarnation) contexts() (worker, inside context.Context) {
	mb := &inc.core.mb
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if inc.ctx == nil {
		inc.ctx, inc.cancel = context.WithCancel(inc.core.system.exec.bind(context.Background()))
		inc.inside = context.WithValue(inc.ctx, insideKey{}, true)
		if inc.over {
			inc.cancel()
		}
	}
	return inc.ctx, inc.inside
}

// finish marks the incarnation as over and stops its timers. It returns what
// cancels the context, if there is one, to be called without the lock. The
// caller holds core.mb.mu.
func (inc *incarnation) finish() context.CancelFunc {
	inc.over = true
	for t := inc.timers; t != nil; t = t.next {
		t.state = timerDone
		t.timer.Stop()
	}
	inc.timers = nil
	return inc.cancel
}

func (inc *incarnation) isOver() bool {
	mb := &inc.core.mb
	mb.mu.Lock()
	defer mb.mu.Unlock()
	return inc.over
}

// run starts a worker. Nothing happens when the incarnation is over.
func (inc *incarnation) run(name string, f func(context.Context) any) {
	ctx, _ := inc.contexts()
	mb := &inc.core.mb
	mb.mu.Lock()
	if inc.over {
		mb.mu.Unlock()
		return
	}
	mb.workers++
	mb.mu.Unlock()
	inc.core.system.exec.spawn(func() { inc.work(ctx, name, f) })
}

// work is the goroutine of a worker. The mailbox counts it until it has
// returned, and holds a restart or stop back until then.
func (inc *incarnation) work(ctx context.Context, name string, f func(context.Context) any) {
	it := item{inc: inc, err: errGoexit}
	defer func() {
		if v := recover(); v != nil {
			it.err = newPanicError(v)
		}
		if it.err != nil {
			it.err = fmt.Errorf("worker %s: %w", name, it.err)
		}
		if !inc.core.mb.result(it) {
			inc.core.discard([]item{it})
		}
		inc.core.mb.workerDone()
	}()
	it.msg = f(ctx)
	it.err = nil
}

type timerState uint8

const (
	timerArmed  timerState = iota
	timerQueued            // the tick is on the reserved path
	timerDone              // delivered or stopped
)

// A Timer is a message that comes later. It belongs to the incarnation that
// asked for it and never reaches another one.
type Timer struct {
	inc        *incarnation
	msg        any
	timer      stopper    // guarded by inc.core.mb.mu
	state      timerState // guarded by inc.core.mb.mu
	prev, next *Timer     // guarded by inc.core.mb.mu
}

// after arms a timer; of an incarnation that is over, one that never fires.
func (inc *incarnation) after(d time.Duration, msg any) *Timer {
	t := &Timer{inc: inc, msg: msg}
	mb := &inc.core.mb
	mb.mu.Lock()
	defer mb.mu.Unlock()
	if inc.over {
		t.state = timerDone
		return t
	}
	if inc.timers != nil {
		inc.timers.prev = t
		t.next = inc.timers
	}
	inc.timers = t
	t.timer = inc.core.system.exec.after(d, t.fire)
	return t
}

// Stop takes the message back and reports whether it could: after true it is
// not delivered any more, even if its time had come already. After false it
// was delivered, was stopped before, or its incarnation is over. Stop of a nil
// or zero Timer does nothing.
func (t *Timer) Stop() bool {
	if t == nil || t.inc == nil {
		return false
	}
	mb := &t.inc.core.mb
	mb.mu.Lock()
	defer mb.mu.Unlock()
	switch t.state {
	case timerArmed:
		t.timer.Stop()
		t.unlink()
	case timerDone:
		return false
	}
	t.state = timerDone
	return true
}

// fire queues the tick.
func (t *Timer) fire() {
	mb := &t.inc.core.mb
	mb.mu.Lock()
	if t.state != timerArmed {
		mb.mu.Unlock()
		return
	}
	t.unlink()
	t.state = timerQueued
	mb.inner.push(item{msg: t.msg, inc: t.inc, timer: t})
	mb.kickAndUnlock()
}

// deliver says whether the tick, now off the queue, is still wanted. The
// caller holds the lock of the mailbox.
func (t *Timer) deliver() bool {
	wanted := t.state == timerQueued
	t.state = timerDone
	return wanted
}

func (t *Timer) unlink() {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		t.inc.timers = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
}
