package agent

import (
	"context"
	"errors"
	"net"
	"time"

	"trivet/node/heart"
	"trivet/node/steal"
)

const (
	// acceptPause is the wait after an error of Accept, which mostly means
	// that the process has run out of descriptors.
	acceptPause = 50 * time.Millisecond
	// drainFor is how long the queue of a listener has to be empty to count
	// as drained.
	drainFor = 20 * time.Millisecond
)

// deadliner is a listener that can be woken up.
type deadliner interface{ SetDeadline(time.Time) error }

// acceptor is the loop that takes stolen connections from a pod's listener.
type acceptor struct {
	pod     *attached
	tunnels *Tunnels
	heart   *heart.Heart
}

// run accepts until ctx ends. Then it sees to it that nothing more is stolen,
// and empties the queue: its connections were stolen and have no one else.
func (a *acceptor) run(ctx context.Context) {
	loop := a.heart.Loop(a.pod.name)
	defer loop.End()
	ln := a.pod.backend.Listener()
	waker, canWake := ln.(deadliner)
	if !canWake {
		// Closing gives what is in the queue to the app.
		stop := context.AfterFunc(ctx, func() { ln.Close() })
		defer stop()
	}
	for ctx.Err() == nil {
		if canWake {
			loop.Alive()
			_ = waker.SetDeadline(time.Now().Add(heart.Round))
		} else {
			loop.Waiting()
		}
		conn, err := ln.Accept()
		loop.Alive()
		switch {
		case err == nil:
			a.hand(conn)
		case errors.Is(err, net.ErrClosed):
			return
		case isTimeout(err):
		default:
			a.pod.logger.Warn("accept stolen connection", "pod", a.pod.name, "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
		}
	}
	if err := disarmAll(a.pod.backend); err != nil {
		a.pod.logger.Error("pod was not disarmed in order", "pod", a.pod.name, "err", err)
	}
	if canWake {
		a.drain(ln, waker, loop)
	}
}

// drain accepts what is in the queue.
func (a *acceptor) drain(ln net.Listener, waker deadliner, loop *heart.Loop) {
	for {
		loop.Alive()
		_ = waker.SetDeadline(time.Now().Add(drainFor))
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		a.hand(conn)
	}
}

// hand gives the connection to its owner. It never waits.
func (a *acceptor) hand(conn net.Conn) {
	if !a.pod.use() {
		reset(conn) // the loop itself is a user, so this cannot be
		return
	}
	a.tunnels.take(stolen{conn: conn, dst: steal.OriginalDst(conn), at: time.Now(), pod: a.pod})
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
