package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"
)

// lingerLimit is how long a local connection stays half open after the stream
// has ended: long enough to take what was written to it, and to find out
// whether the application had more to say.
const lingerLimit = 10 * time.Second

// Serve joins a stream, after its handshake, with a local connection, which it
// owns from then on and closes. Half closes pass in both directions, each leaves
// the other direction open. Everything else resets the connection (SO_LINGER 0,
// below TLS if it is a TLS connection), so that an application cannot take a
// truncated body for a complete one, and tells the peer by Disconnect.
//
// The error is nil after a clean end (Stats.End is EndClean), else an
// *errs.Error that a handler can return. A handler must return it: the peer
// must not take the end of the stream for a clean one.
//
// An opener's clean end includes the server's: Serve waits until the server has
// ended the stream, because ending it earlier would cut off what is still on
// its way. If the stream is an Aborter (ClientStream), all goroutines have ended
// when Serve returns. Else, after an error, some may be parked in a call of the
// stream, which gRPC ends when the handler returns or the stream's context is
// cancelled.
func Serve(ctx context.Context, s Stream, side Side, conn net.Conn, opts Options) (Stats, error) {
	e := &endpoint{
		port:  newPort(s, side == Opener),
		side:  side,
		conn:  conn,
		opts:  opts,
		idle:  newIdleWatch(opts.idle()),
		ended: make(chan endpointEnd, 2),
	}
	defer e.idle.stop()
	o := e.run(ctx)
	return Stats{
		BytesIn:  e.bytesIn.Load(),
		BytesOut: e.bytesOut.Load(),
		Ignored:  e.ignored.Load(),
		Dropped:  e.dropped.Load(),
		End:      o.end,
	}, o.asError()
}

// endpointEnd is how a direction ended: the one from the stream to the local
// connection if in is set, else the other one.
type endpointEnd struct {
	outcome
	in bool
}

// endpoint is one call of Serve.
type endpoint struct {
	port *port
	side Side
	conn net.Conn
	opts Options
	idle *idleWatch

	ended chan endpointEnd
	// over is set once the server has ended an opener's stream.
	over atomic.Bool

	bytesIn, bytesOut, ignored, dropped atomic.Uint64
}

// check finds what would otherwise go wrong late.
func (e *endpoint) check() error {
	if e.side == Opener && e.port.closer == nil {
		return errors.New("the opener's stream cannot half close")
	}
	if _, ok := e.conn.(closeWriter); !ok && !e.opts.Datagram {
		return fmt.Errorf("%T cannot half close", e.conn)
	}
	return nil
}

func (e *endpoint) run(ctx context.Context) outcome {
	if err := e.check(); err != nil {
		return e.abort(outcome{EndLocal, err}, 0)
	}
	// Until both directions have ended in order, whatever ends the connection
	// is to be seen as a reset, the death of this process included.
	setLinger(e.conn, lingerReset)
	go func() { e.ended <- endpointEnd{e.streamToConn(), true} }()
	go func() { e.ended <- endpointEnd{e.connToStream(), false} }()

	gone := e.port.gone
	inEnded, cutOff := false, false
	for running := 2; running > 0; {
		o := clean
		select {
		case d := <-e.ended:
			running--
			switch o = d.outcome; {
			case d.in && o.end == EndClean:
				inEnded = true
				if e.side == Opener {
					e.linger()
				}
			case !d.in && e.side == Opener && o.end == EndStream && errors.Is(o.err, io.EOF):
				// The server has ended the stream. Recv says how, and what
				// the server had sent before that is still good.
				o, cutOff = clean, true
			}
		case <-gone:
			// Gone after its half close and ours is a clean end.
			if gone = nil; !e.port.sendEnded() {
				o = outcome{EndStream, errGone}
			}
		case <-e.idle.C:
			if e.idle.expired() {
				o = outcome{end: EndIdle}
			}
		case <-ctx.Done():
			o = outcome{EndCanceled, context.Cause(ctx)}
		}
		if o.end == EndClean && inEnded && cutOff {
			o = outcome{EndStream, errCutOff}
		}
		if o.end != EndClean {
			return e.abort(o, running)
		}
	}
	// Both directions ended in order, so an error could not mean a loss.
	setLinger(e.conn, lingerNone)
	_ = e.conn.Close()
	return clean
}

// linger bounds how long the local connection may stay half open now that the
// stream is over.
func (e *endpoint) linger() {
	e.over.Store(true)
	// It fails for a closed connection, which the other direction sees too.
	_ = e.conn.SetReadDeadline(time.Now().Add(lingerLimit))
}

// abort ends everything at once. It returns o.
func (e *endpoint) abort(o outcome, running int) outcome {
	reset(e.conn)
	told := true
	switch o.end {
	case EndLocal, EndMalformed, EndIdle, EndCanceled:
		told = e.port.disconnect()
	}
	if e.port.aborter == nil {
		return o // the end of the handler does the rest
	}
	if told {
		// The peer ends the stream in answer, or has done so; an abort could
		// overtake the frame.
		running = e.drain(running, abortGrace)
	}
	e.port.abort()
	e.drain(running, -1)
	return o
}

// drain waits until that many directions have ended, at most limit if that is
// not negative, and returns how many have not.
func (e *endpoint) drain(running int, limit time.Duration) int {
	var expired <-chan time.Time
	if limit >= 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		expired = t.C
	}
	for ; running > 0; running-- {
		select {
		case <-e.ended:
		case <-expired:
			return running
		}
	}
	return 0
}
