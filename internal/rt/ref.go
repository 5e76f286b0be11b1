package rt

import (
	"context"
	"errors"
	"fmt"
)

// A Ref is the way to an actor, over all its restarts. It is comparable: two
// Refs are equal if they name the same actor. The zero value is a stopped
// actor.
type Ref[M any] struct{ cell *cell[M] }

// Offer queues m, or returns ErrFull or ErrStopped. It never waits. Messages
// of one sender are handled in order.
func (r Ref[M]) Offer(m M) error {
	if r.cell == nil {
		return ErrStopped
	}
	return r.cell.mb.offer(m)
}

// Push queues m, waiting for room if there is none; senders that wait are
// served in order. It returns ErrStopped, ErrInsideActor (Start and Handle
// must not wait), or the error of ctx; then m was not accepted.
func (r Ref[M]) Push(ctx context.Context, m M) error {
	if r.cell == nil {
		return ErrStopped
	}
	if isInside(ctx) {
		return fmt.Errorf("push to %s: %w", r.Name(), ErrInsideActor)
	}
	return r.cell.mb.push(ctx, m)
}

// Stop makes the actor stop and waits until its Stop hook has run and its
// children and workers have ended. What is queued goes to Spec.Lost; Offer
// returns ErrStopped from now on. If ctx ends first, Stop returns its error
// and the actor goes on stopping. Stop of a stopped actor returns nil. An
// actor must not wait for its own stop: it uses Ctx.StopSelf.
func (r Ref[M]) Stop(ctx context.Context) error {
	if r.cell == nil {
		return nil
	}
	r.cell.requestStop()
	return r.cell.wait(ctx)
}

// RequestStop is Stop without waiting.
func (r Ref[M]) RequestStop() {
	if r.cell != nil {
		r.cell.requestStop()
	}
}

// Drain lets the actor handle what is queued, stops it, and waits for that as
// Stop does. Offer returns ErrStopped from now on. Failures are treated as
// ever; if the actor is given up on the way, the rest goes to Spec.Lost.
func (r Ref[M]) Drain(ctx context.Context) error {
	if r.cell == nil {
		return nil
	}
	r.cell.requestDrain()
	return r.cell.wait(ctx)
}

// Done returns a channel that is closed when the actor has ended for good.
func (r Ref[M]) Done() <-chan struct{} {
	if r.cell == nil {
		return closedChan
	}
	return r.cell.doneChan()
}

// Err returns nil while Done is open, then ErrStopped, or an error that wraps
// ErrFailed and the last failure if the actor was given up.
func (r Ref[M]) Err() error {
	if r.cell == nil {
		return ErrStopped
	}
	return r.cell.err()
}

// Name returns the dotted name, such as "leader@3.agents.agent:7f", for logs.
func (r Ref[M]) Name() string {
	if r.cell == nil {
		return "none"
	}
	return r.cell.path()
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// asked is a message whose sender waits for a reply.
type asked struct {
	msg  any
	fail func(error)
}

type result[R any] struct {
	value R
	err   error
}

// A Reply answers one Ask. The first Send or Fail counts, all others are
// ignored, as is an answer that nobody waits for any more. The zero value
// ignores all. A behaviour that keeps a Reply for later fails it in Stop.
type Reply[R any] struct{ c chan result[R] }

// Send answers with v.
func (r Reply[R]) Send(v R) { r.put(result[R]{value: v}) }

// Fail answers with err, which must not be nil.
func (r Reply[R]) Fail(err error) {
	if err == nil {
		err = errors.New("failed without an error")
	}
	r.put(result[R]{err: err})
}

func (r Reply[R]) put(res result[R]) {
	if r.c == nil {
		return
	}
	select {
	case r.c <- res:
	default:
	}
}

// Ask offers the message that build makes and waits for its Reply. It returns
// the error given to Reply.Fail, ErrFull, ErrStopped (also when the actor
// stops without an answer), an error that wraps ErrFailed when the actor
// failed on this message, ErrInsideActor, or the error of ctx. After any of
// the last four it is unknown what the message has brought about.
func Ask[M, R any](ctx context.Context, ref Ref[M], build func(Reply[R]) M) (R, error) {
	var zero R
	if ref.cell == nil {
		return zero, ErrStopped
	}
	if isInside(ctx) {
		return zero, fmt.Errorf("ask %s: %w", ref.Name(), ErrInsideActor)
	}
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("ask %s: %w", ref.Name(), err)
	}
	reply := Reply[R]{make(chan result[R], 1)}
	if err := ref.cell.mb.offer(&asked{msg: build(reply), fail: reply.Fail}); err != nil {
		return zero, err
	}
	var err error
	select {
	case res := <-reply.c:
		return res.value, res.err
	case <-ref.Done():
		err = ErrStopped
	case <-ctx.Done():
		err = fmt.Errorf("ask %s: %w", ref.Name(), ctx.Err())
	}
	select {
	case res := <-reply.c: // it was there too
		return res.value, res.err
	default:
		return zero, err
	}
}
