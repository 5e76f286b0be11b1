package rt

import (
	"runtime"
	"slices"

	"github.com/asynkron/protoactor-go/actor"
)

// loop handles messages until there is nothing to do; on a stepper, one.
func (m *mailbox) loop() {
	for !m.batch() {
		if m.stepwise {
			m.dispatcher.Schedule(m.loopFunc)
			return
		}
		runtime.Gosched()
	}
}

// batch handles some messages and reports whether the loop is over. A panic
// that gets here was not of a Behavior (those are recovered closer to it).
func (m *mailbox) batch() (over bool) {
	finished := false
	defer func() {
		if finished {
			return
		}
		if v := recover(); v != nil {
			m.owner.crashed(newPanicError(v))
			return
		}
		// Goexit: this goroutine ends, whatever we do. Go on in another.
		m.owner.crashed(errGoexit)
		m.dispatcher.Schedule(m.loopFunc)
	}()
	clock := m.kind.now()
	for range m.dispatcher.Throughput() {
		step, msg := m.next()
		switch step {
		case stepIdle:
			finished = true
			return true
		case stepDeliver:
			m.invoker.InvokeUserMessage(deliverySignal{})
			m.current = item{}
			// One reading for each message: the end of one is the start of the
			// next.
			began := clock
			if clock = m.kind.now(); clock-began > slowHandler {
				m.kind.slow.Add(1)
			}
			continue
		case stepSystem:
			m.invoker.InvokeSystemMessage(msg)
		case stepStop:
			m.drain()
			if !m.hold(msg) {
				m.invoker.InvokeSystemMessage(msg)
			}
		case stepPoison:
			m.invoker.InvokeUserMessage(msg)
		}
		clock = m.kind.now()
	}
	finished = true
	return false
}

type step int

const (
	stepIdle step = iota
	stepSystem
	stepStop
	stepPoison
	stepDeliver // the item is in m.current
)

// next takes the next thing to do off the queues.
func (m *mailbox) next() (step, any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.system.len() > 0 {
		switch msg := m.system.pop().(type) {
		case *actor.SuspendMailbox:
			m.suspended = !m.supervisor
		case *actor.ResumeMailbox:
			m.suspended = false
		case *actor.Restart:
			// The library would bring a stopping or stopped actor back to life.
			if m.stopping {
				continue
			}
			if m.workers > 0 {
				m.held = msg
				continue
			}
			return stepSystem, msg
		case *actor.Stop:
			return stepStop, msg
		default:
			return stepSystem, msg
		}
	}
	if m.delivers() {
		if m.takeInner() || m.takeUser() {
			return stepDeliver, nil
		}
		if m.poison != nil {
			msg := m.poison
			m.poison = nil
			return stepPoison, msg
		}
	}
	m.running = false
	m.user.shrink()
	m.inner.shrink()
	m.system.shrink()
	return stepIdle, nil
}

// takeInner moves an item of the reserved path to current. After one such
// item a waiting message of others has its turn, so neither starves.
func (m *mailbox) takeInner() bool {
	if !m.innerFirst && m.user.len() > 0 {
		return false
	}
	for m.inner.len() > 0 {
		it := m.inner.pop()
		if it.timer != nil && !it.timer.deliver() {
			continue
		}
		m.current = it
		m.innerFirst = false
		return true
	}
	return false
}

// takeUser moves the oldest message of others to current and gives its room
// to the first sender that waits.
func (m *mailbox) takeUser() bool {
	if m.user.len() == 0 {
		return false
	}
	m.current = item{msg: m.user.pop()}
	m.innerFirst = true
	if len(m.waiters) > 0 {
		w := m.waiters[0]
		m.waiters = slices.Delete(m.waiters, 0, 1)
		m.user.push(w.msg)
		w.done <- nil
	}
	return true
}

// drain disposes of everything queued; the mailbox is closed by now.
func (m *mailbox) drain() {
	m.mu.Lock()
	user, inner := m.user.take(), m.discarded()
	m.poison = nil
	m.mu.Unlock()
	for _, msg := range user {
		m.owner.lost(msg)
	}
	m.owner.discard(inner)
}

// discarded empties the reserved path and returns what was still wanted. The
// caller holds mu.
func (m *mailbox) discarded() []item {
	return slices.DeleteFunc(m.inner.take(), func(it item) bool {
		return it.timer != nil && !it.timer.deliver()
	})
}

// hold keeps msg back while workers run, and reports whether it did.
func (m *mailbox) hold(msg any) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.workers == 0 {
		return false
	}
	m.held = msg
	return true
}

// result queues what a worker returned, or reports that its incarnation is
// over.
func (m *mailbox) result(it item) (accepted bool) {
	m.mu.Lock()
	if it.inc.over {
		m.mu.Unlock()
		return false
	}
	m.inner.push(it)
	m.kickAndUnlock()
	return true
}

// workerDone notes that a worker has returned. The last one lets a held
// Restart or Stop through.
func (m *mailbox) workerDone() {
	m.mu.Lock()
	m.workers--
	if m.workers == 0 && m.held != nil {
		m.system.push(m.held)
		m.held = nil
	}
	m.kickAndUnlock()
}
