package tunnel

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Relay joins two streams, after their handshakes, and returns when both
// directions have ended or one did not end well. Messages pass unchanged, those
// with unknown codes too; nothing is queued between Recv and Send, so a slow
// reader slows its sender and nobody else. Either stream may be the server side
// of an opener or (a HalfCloser) the client side of a stream to another server.
//
// A half close passes in whatever form the other stream knows. When a stream
// breaks or violates the contract, the other one gets Disconnect. The caller,
// which holds the handlers of the server-side streams, must let them return
// promptly, with ErrA and ErrB: that is what ends a stream whose peer takes no
// frame any more, and a call of Recv that is still parked in it. If both streams
// are Aborters (ClientStream), nothing is left running.
func Relay(ctx context.Context, a, b Stream, opts Options) RelayStats {
	r := &relay{idle: newIdleWatch(opts.idle()), ended: make(chan directionEnd, 2)}
	defer r.idle.stop()
	r.ports[sideA] = openPort(a)
	r.ports[sideB] = openPort(b)
	if c := opts.Counters; c != nil {
		r.shared[sideA], r.shared[sideB] = &c.In, &c.Out
	}
	s := r.run(ctx)
	s.AToB, s.BToA = r.bytes[sideA].Load(), r.bytes[sideB].Load()
	return s
}

func openPort(s Stream) *port {
	_, client := s.(HalfCloser)
	return newPort(s, client)
}

// relaySide is a stream of a relay, and the direction that starts at it.
type relaySide int

const (
	sideA relaySide = iota
	sideB
	noSide
)

func (s relaySide) other() relaySide { return sideB - s }

// directionEnd is how the direction that starts at from ended. The fault is the
// stream that caused it, noSide after a clean end.
type directionEnd struct {
	outcome
	fault relaySide
}

// relay is one call of Relay. Arrays are indexed by the side that a direction
// starts at.
type relay struct {
	ports  [2]*port
	bytes  [2]atomic.Uint64
	shared [2]*atomic.Uint64 // nil without counters
	idle   *idleWatch
	ended  chan directionEnd // never blocks: it has room for both
	over   [2]chan struct{}  // closed after the direction's end
}

func (r *relay) run(ctx context.Context) RelayStats {
	for from := range r.ports {
		r.over[from] = make(chan struct{})
		go func() {
			defer close(r.over[from])
			r.ended <- r.forward(relaySide(from))
		}()
	}

	goneA, goneB := r.ports[sideA].gone, r.ports[sideB].gone
	cutOff := noSide
	for running := 2; running > 0; {
		e := directionEnd{clean, noSide}
		select {
		case e = <-r.ended:
			running--
			if r.endedByServer(e) {
				// Recv says how, and what the server had sent before that is
				// still good: the other direction ends with the answer.
				e, cutOff = directionEnd{clean, noSide}, e.fault
			}
			if running == 0 && cutOff != noSide && e.end == EndClean {
				e = directionEnd{outcome{EndStream, errCutOff}, cutOff}
			}
		case <-goneA:
			goneA, e = nil, r.gone(sideA)
		case <-goneB:
			goneB, e = nil, r.gone(sideB)
		case <-r.idle.C:
			if r.idle.expired() {
				e.outcome = outcome{end: EndIdle}
			}
		case <-ctx.Done():
			e.outcome = outcome{EndCanceled, context.Cause(ctx)}
		}
		if e.end != EndClean {
			return r.abort(e)
		}
	}
	return RelayStats{End: EndClean}
}

// endedByServer reports whether e is a send to a client stream that its server
// had ended.
func (r *relay) endedByServer(e directionEnd) bool {
	return e.end == EndStream && errors.Is(e.err, io.EOF) && r.ports[e.fault].closer != nil
}

// gone judges the end of an opener's context: it is an orderly one if the opener
// has been told that no more will come. (If it had more to say itself, its
// direction fails.)
func (r *relay) gone(s relaySide) directionEnd {
	if r.ports[s].sendEnded() {
		return directionEnd{clean, noSide}
	}
	return directionEnd{outcome{EndStream, errGone}, s}
}

// abort ends both streams at once, each in the way that is left to it.
func (r *relay) abort(e directionEnd) RelayStats {
	var (
		told [2]bool
		wg   sync.WaitGroup
	)
	for s, p := range r.ports {
		if relaySide(s) != e.fault {
			wg.Go(func() { told[s] = p.disconnect() })
		}
	}
	wg.Wait()
	r.abortClients(told)

	st := RelayStats{End: e.end}
	errOf := func(s relaySide) error {
		hard := e.end == EndDisconnected || e.end == EndRejected
		switch {
		case e.fault == noSide:
			return e.asError()
		case hard && (s == e.fault || told[s]):
			return nil
		case s == e.fault:
			return e.asError()
		}
		return errs.New(codes.Aborted, ReasonDisconnected, "tunnel: the other end is gone")
	}
	st.ErrA, st.ErrB = errOf(sideA), errOf(sideB)
	return st
}

// abortClients ends the streams that no handler ends. Those that were told to
// end get a moment to do so, because an abort could overtake the frame.
func (r *relay) abortClients(told [2]bool) {
	var wg sync.WaitGroup
	clients := 0
	for s, p := range r.ports {
		if p.aborter == nil {
			continue
		}
		clients++
		wg.Go(func() {
			if told[s] {
				grace := time.NewTimer(abortGrace)
				defer grace.Stop()
				select {
				case <-r.over[s]:
				case <-grace.C:
				}
			}
			p.abort()
		})
	}
	wg.Wait()
	if clients == len(r.ports) {
		<-r.over[sideA]
		<-r.over[sideB]
	}
}

// forward is one direction.
func (r *relay) forward(from relaySide) directionEnd {
	src, dst := r.ports[from], r.ports[from.other()]
	var (
		m      message
		closed bool
	)
	defer m.release()
	for {
		m.release()
		err := src.recv(&m)
		switch {
		case errors.Is(err, io.EOF):
			if err := dst.closeSend(); err != nil {
				return directionEnd{outcome{EndStream, err}, from.other()}
			}
			return directionEnd{clean, noSide}
		case err != nil:
			return directionEnd{outcome{EndStream, err}, from}
		}
		r.idle.touch()
		if m.payloadLen() == 0 {
			return directionEnd{outcome{EndMalformed, ErrEmptyPayload}, from}
		}
		code, n := m.code(), m.payloadLen()-1
		switch {
		case code == CodeDisconnect:
			// Passed on by abort, which knows what dst can still be told.
			return directionEnd{outcome{end: EndDisconnected}, from}
		case code == CodeCloseSend:
			if err := dst.closeSend(); err != nil {
				return directionEnd{outcome{EndStream, err}, from.other()}
			}
			// A client stream goes on until its server ends it; an opener that
			// sends the frame instead of gRPC's half close has said it all.
			if closed = true; src.closer == nil {
				return directionEnd{clean, noSide}
			}
			continue
		case code == CodeNormal && closed:
			return directionEnd{outcome{EndMalformed, errAfterCloseSend}, from}
		case closed:
			continue // dst has been told that nothing follows
		}
		send := dst.send
		if code == CodeDialReject {
			send = dst.sendLast
		}
		if err := send(&m); err != nil {
			return directionEnd{outcome{EndStream, err}, from.other()}
		}
		r.idle.touch()
		switch code {
		case CodeNormal:
			r.count(from, uint64(n))
		case CodeDialReject:
			return directionEnd{outcome{end: EndRejected}, from}
		}
	}
}

func (r *relay) count(from relaySide, n uint64) {
	r.bytes[from].Add(n)
	if c := r.shared[from]; c != nil {
		c.Add(n)
	}
}
