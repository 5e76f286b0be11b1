package rt

import (
	"context"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
)

// requestStop asks the library to stop c, unless that has happened before: a
// Stop to an actor that is gone would be a dead letter.
func (c *core) requestStop() {
	c.mb.mu.Lock()
	again := c.stopAsked || c.mb.stopping
	c.stopAsked = true
	pid := c.pid()
	c.mb.mu.Unlock()
	if !again && pid != nil {
		c.system.library.Root.Stop(pid)
	}
}

// isStopping reports whether c was told to stop.
func (c *core) isStopping() bool {
	c.mb.mu.Lock()
	defer c.mb.mu.Unlock()
	return c.mb.stopping
}

// requestDrain asks the library to stop c after what is queued.
func (c *core) requestDrain() {
	c.mb.mu.Lock()
	again := c.stopAsked || c.mb.closed
	pid := c.pid()
	c.mb.mu.Unlock()
	if !again && pid != nil {
		c.system.library.Root.Poison(pid)
	}
}

// pid is c's address in the library, known from RegisterHandlers on. The
// caller holds mb.mu.
func (c *core) pid() *actor.PID {
	if ctx, ok := c.mb.invoker.(actor.Context); ok {
		return ctx.Self()
	}
	return nil
}

// doneChan returns the channel that is closed when c has ended.
func (c *core) doneChan() <-chan struct{} {
	c.mb.mu.Lock()
	defer c.mb.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.ended {
			close(c.done)
		}
	}
	return c.done
}

// wait waits until c has ended.
func (c *core) wait(ctx context.Context) error {
	done := c.doneChan()
	select {
	case <-done:
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop %s: %w", c.path(), ctx.Err())
	}
}

// err is nil until c has ended, then says why.
func (c *core) err() error {
	c.mb.mu.Lock()
	defer c.mb.mu.Unlock()
	switch {
	case !c.ended:
		return nil
	case c.cause != nil:
		return fmt.Errorf("%w: %w", ErrFailed, c.cause)
	}
	return ErrStopped
}
