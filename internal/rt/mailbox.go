package rt

import (
	"context"
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// owner is what a mailbox needs from the actor it belongs to.
type owner interface {
	// halt ends the current incarnation because a stop was asked for. It is
	// called from any goroutine.
	halt()
	// lost disposes of an accepted message that nobody will handle. It runs
	// where the actor runs.
	lost(msg any)
	// discard disposes of what was queued on the reserved path.
	discard(items []item)
	// crashed reports a panic or Goexit that reached the loop.
	crashed(err error)
}

// item is what an actor is given to handle.
type item struct {
	msg   any
	inc   *incarnation // whose worker or timer it came from; nil for messages of others
	timer *Timer       // set for a tick
	err   error        // set when the worker failed
}

// deliverySignal is what the library carries in place of a message: the
// message itself stays in mailbox.current. So no message can be mistaken for
// one of the library's own, and none is wrapped.
type deliverySignal struct{}

// mailbox is the queue of one actor. All its state is under one mutex, so a
// wake-up cannot be lost. It has three queues: system messages of the library
// (unbounded; only the library posts them), results of workers and ticks
// (bounded by what the actor started), and messages of others (bounded by
// capacity).
//
// The mailbox is also the gate between the library and the workers: a Restart
// or Stop is held back until the last worker has returned. That way nothing
// waits on a goroutine, and no incarnation overlaps with workers of another.
type mailbox struct {
	owner    owner
	kind     *counters
	capacity int
	// supervisor marks the mailbox of a group, which has no behaviour that
	// could be in a bad state and therefore is never suspended.
	supervisor bool

	// current is the item being handled. Only the loop touches it.
	current item

	mu         sync.Mutex
	user       ring[any]            // guarded by mu
	inner      ring[item]           // guarded by mu
	system     ring[any]            // guarded by mu
	waiters    []*waiter            // guarded by mu; blocked Push calls, only while user is full
	poison     any                  // guarded by mu; reserved slot, so a full mailbox cannot refuse it
	held       any                  // guarded by mu; Restart or Stop that waits for the workers
	workers    int                  // guarded by mu; goroutines that have not returned
	closed     bool                 // guarded by mu; accepts nothing any more
	stopping   bool                 // guarded by mu; a Stop was posted
	suspended  bool                 // guarded by mu
	running    bool                 // guarded by mu; a goroutine is in loop
	innerFirst bool                 // guarded by mu; whose turn it is
	invoker    actor.MessageInvoker // guarded by mu until set, then constant
	dispatcher actor.Dispatcher     // guarded by mu until set, then constant
	loopFunc   func()               // m.loop, made once
	stepwise   bool                 // the loop is left after each batch; set with dispatcher
}

var _ actor.Mailbox = (*mailbox)(nil)

// waiter is a blocked Push. The mailbox moves its message when there is room,
// in the order of arrival.
type waiter struct {
	msg  any
	done chan error // capacity 1
}

// offer accepts msg, or says why not. It never waits.
func (m *mailbox) offer(msg any) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrStopped
	}
	if m.user.len() >= m.capacity {
		m.mu.Unlock()
		m.kind.full.Add(1)
		return ErrFull
	}
	m.accept(msg)
	m.kickAndUnlock()
	return nil
}

// push waits until msg is accepted, the mailbox closes, or ctx ends.
func (m *mailbox) push(ctx context.Context, msg any) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrStopped
	}
	if m.user.len() < m.capacity {
		m.accept(msg)
		m.kickAndUnlock()
		return nil
	}
	w := &waiter{msg: msg, done: make(chan error, 1)}
	m.waiters = append(m.waiters, w)
	m.mu.Unlock()

	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	m.mu.Lock()
	i := slices.Index(m.waiters, w)
	if i >= 0 {
		m.waiters = slices.Delete(m.waiters, i, i+1)
	}
	m.mu.Unlock()
	if i < 0 {
		return <-w.done // decided before the context ended
	}
	return ctx.Err()
}

// accept queues a message of others. The caller holds mu and has seen room.
func (m *mailbox) accept(msg any) {
	m.user.push(msg)
	m.kind.sawDepth(int64(m.user.len()))
}

// post queues an item on the reserved path. It refuses only when closed.
func (m *mailbox) post(it item) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrStopped
	}
	m.inner.push(it)
	m.kickAndUnlock()
	return nil
}

// PostUserMessage is the library's way in: Poison uses it, nothing else.
func (m *mailbox) PostUserMessage(msg any) {
	if _, ok := msg.(*actor.PoisonPill); !ok {
		if err := m.offer(msg); err != nil {
			m.owner.lost(msg)
		}
		return
	}
	m.mu.Lock()
	if m.stopping {
		m.mu.Unlock()
		return
	}
	m.poison = msg
	refused := m.close()
	m.kickAndUnlock()
	refuse(refused)
}

// PostSystemMessage queues a message of the library. A Stop takes effect on
// senders, timers and contexts at once, before the actor has come to it.
func (m *mailbox) PostSystemMessage(msg any) {
	if _, ok := msg.(*actor.Stop); ok {
		m.mu.Lock()
		m.stopping = true
		refused := m.close()
		m.mu.Unlock()
		refuse(refused)
		m.owner.halt()
	}
	m.mu.Lock()
	m.system.push(msg)
	m.kickAndUnlock()
}

// close makes the mailbox refuse messages and returns the senders that wait,
// to be refused without the lock. The caller holds mu.
func (m *mailbox) close() []*waiter {
	m.closed = true
	w := m.waiters
	m.waiters = nil
	return w
}

func refuse(waiters []*waiter) {
	for _, w := range waiters {
		w.done <- ErrStopped
	}
}

// RegisterHandlers connects the mailbox to its actor. Messages may have come
// before: the library publishes an actor before it calls this.
func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.invoker, m.dispatcher, m.loopFunc = invoker, dispatcher, m.loop
	_, m.stepwise = dispatcher.(stepDispatcher)
}

// Start lets the loop run.
func (m *mailbox) Start() {
	m.mu.Lock()
	m.kickAndUnlock()
}

// UserMessageCount returns the number of queued messages of others.
func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.len()
}

// delivers reports whether messages are handed to the actor. Between the
// moment a Stop is asked for and the Stop itself they are not: the incarnation
// is over. The caller holds mu.
func (m *mailbox) delivers() bool { return !m.suspended && !m.stopping }

// kickAndUnlock starts the loop if there is something to do and it is not
// running. It is called with mu held and releases it, because a dispatcher
// may run the loop before Schedule returns.
func (m *mailbox) kickAndUnlock() {
	start := !m.running && m.invoker != nil && (m.system.len() > 0 ||
		m.delivers() && (m.user.len() > 0 || m.inner.len() > 0 || m.poison != nil))
	if start {
		m.running = true
	}
	m.mu.Unlock()
	if start {
		m.dispatcher.Schedule(m.loopFunc)
	}
}
