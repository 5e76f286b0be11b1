package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/node/link"
	"trivet/proto/telepresence/managersvc"
	"trivet/tunnel"
)

const (
	// openTimeout bounds connecting to a server and its part of the handshake,
	// which needs nobody else: a server that hangs is left for the next one.
	openTimeout = time.Second
	// firstAnswer is how long the first attempt waits for the owner's end; the
	// later ones wait for as long as is left. A request to dial that was under
	// way to a server when that server died is answered by nobody, and the
	// owner is back on another server long before this.
	firstAnswer = 1500 * time.Millisecond
	// retryMin and retryMax are the wait between attempts while the owner is
	// away; a thousand connections may be waiting.
	retryMin = 20 * time.Millisecond
	retryMax = 400 * time.Millisecond
	// appTimeout is how long the app has to take a connection.
	appTimeout = 5 * time.Second
)

// connection is a stolen connection that is being served.
type connection struct {
	tunnels *Tunnels
	stolen
	released sync.Once
}

// run serves the connection and says what became of it.
func (c *connection) run(ctx context.Context) (outcome, reason) {
	defer c.let()
	// From here on the connection ends with the process, wherever it is: with
	// a reset, so that nobody takes what has come through for all there is.
	setLinger(c.conn, lingerReset)
	stop := context.AfterFunc(ctx, func() { reset(c.conn) })
	defer stop()

	metrics := c.tunnels.cfg.Metrics
	if c.pod.held.Add(1) > int64(c.tunnels.cfg.MaxHeld) {
		c.pod.held.Add(-1)
		return c.toApp(ctx, whyHeldLimit)
	}
	metrics.held.Inc()
	stream, out, why := c.dial(ctx)
	metrics.held.Dec()
	c.pod.held.Add(-1)

	switch {
	case stream != nil:
		c.let()
		return c.carry(ctx, stream)
	case out == outApp:
		return c.toApp(ctx, why)
	}
	reset(c.conn)
	return out, why
}

// let releases the pod as soon as the connection needs nothing of it any more.
func (c *connection) let() { c.released.Do(c.pod.release) }

// carry moves bytes through the tunnel until both directions have ended.
func (c *connection) carry(ctx context.Context, s *tunnel.ClientStream) (outcome, reason) {
	defer s.Abort()
	stats, err := tunnel.Serve(ctx, s, tunnel.Opener, c.conn, tunnel.Options{Counters: c.tunnels.cfg.Metrics.bytes})
	if err == nil {
		return outTunnel, whyClean
	}
	c.tunnels.cfg.Logger.Debug("tunnel was interrupted", "pod", c.pod.name, "visitor", c.conn.RemoteAddr(),
		"end", stats.End, "err", err)
	return outTunnel, whyInterrupted
}

// dial opens a tunnel whose other end has reached its target. Without one it
// says what is to become of the connection. Not a byte of the visitor's has
// been read by then.
func (c *connection) dial(ctx context.Context) (*tunnel.ClientStream, outcome, reason) {
	hold, cancel := context.WithDeadline(ctx, c.at.Add(c.tunnels.cfg.HoldFor))
	defer cancel()
	backoff := link.Backoff{Min: retryMin, Max: retryMax}
	server := c.tunnels.cfg.Pool.Current()
	for attempt := 0; ; attempt++ {
		to, err := c.route(hold)
		switch {
		case ctx.Err() != nil:
			return nil, outReset, whyStopping
		case err != nil:
			return nil, outApp, whyNoAnswer
		case to == nil:
			return nil, outApp, whyNoIntercept
		}
		if attempt > 0 {
			c.tunnels.cfg.Metrics.retries.Inc()
		}
		stream, err := c.attempt(ctx, hold, to, server, attempt == 0)
		if err == nil {
			return stream, "", ""
		}
		c.tunnels.cfg.Logger.Debug("no tunnel", "pod", c.pod.name, "visitor", c.conn.RemoteAddr(),
			"intercept", to.Intercept, "server", server.Addr(), "attempt", attempt, "err", err)
		switch {
		case ctx.Err() != nil:
			return nil, outReset, whyStopping
		case errs.Reason(err) == tunnel.ReasonRejected:
			return nil, outReset, whyRejected
		case to.ctx.Err() != nil:
			continue // another route, or none
		case hold.Err() != nil:
			return c.giveUp(to, whyOwnerAway)
		case isFinal(err):
			return c.giveUp(to, whyRefused)
		}
		server = c.next(server)
		wait, cancel := context.WithCancel(hold)
		stop := context.AfterFunc(to.ctx, cancel)
		waitErr := backoff.Wait(wait)
		stop()
		cancel()
		if waitErr != nil && hold.Err() != nil && ctx.Err() == nil {
			return c.giveUp(to, whyOwnerAway)
		}
	}
}

// giveUp is the end of waiting.
func (c *connection) giveUp(to *route, why reason) (*tunnel.ClientStream, outcome, reason) {
	if to.Replace {
		return nil, outReset, whyReplaced
	}
	return nil, outApp, why
}

// route waits until it is known where the connection goes.
func (c *connection) route(hold context.Context) (*route, error) {
	for {
		to, known, changed := c.pod.routes.lookup(c.dst.Port())
		if known {
			return to, nil
		}
		select {
		case <-changed:
		case <-hold.Done():
			return nil, hold.Err()
		}
	}
}

// next returns a server for another attempt: the one that the pool has turned
// to since, or else the one after the last.
func (c *connection) next(last *link.Server) *link.Server {
	if current := c.tunnels.cfg.Pool.Current(); current != last {
		return current
	}
	return c.tunnels.cfg.Pool.After(last)
}

// attempt opens a tunnel through a server and waits for the owner's end, for
// as long as the connection may be held and the route stands, or for less if
// it is the first one.
func (c *connection) attempt(
	ctx, hold context.Context, to *route, server *link.Server, first bool,
) (*tunnel.ClientStream, error) {
	session := c.pod.sessionID()
	if session == "" {
		return nil, errs.New(codes.Unavailable, "NO_SESSION", "the agent has not arrived yet")
	}
	id, err := connID(c.conn.RemoteAddr().String(), to.Addr)
	if err != nil {
		return nil, errs.New(codes.InvalidArgument, "BAD_CONNECTION", "%w", err)
	}
	conn, err := server.Data()
	if err != nil {
		return nil, err
	}
	// The stream lives on after this call, so its context is the connection's;
	// what bounds the call cancels it from outside.
	streamCtx, abort := context.WithCancel(ctx)
	end := c.at.Add(c.tunnels.cfg.HoldFor)
	if first {
		end = time.Now().Add(firstAnswer)
	}
	limit, cancel := context.WithDeadline(hold, end)
	defer cancel()
	stopRoute := context.AfterFunc(to.ctx, cancel)
	defer stopRoute()
	stopLimit := context.AfterFunc(limit, abort)
	stream, err := c.open(limit, streamCtx, abort, conn, tunnel.StreamInfo{
		RoundtripLatency: to.Latency, DialTimeout: to.DialTimeout, ConnID: id, SessionID: session,
	}, to.Client)
	if err == nil && !stopLimit() {
		err = context.Cause(limit) // the limit came in between
	}
	if err != nil {
		abort()
		return nil, err
	}
	return stream, nil
}

func (c *connection) open(
	limit, streamCtx context.Context, abort context.CancelFunc, conn grpc.ClientConnInterface,
	info tunnel.StreamInfo, client string,
) (*tunnel.ClientStream, error) {
	first, cancel := context.WithTimeout(limit, openTimeout)
	defer cancel()
	stop := context.AfterFunc(first, abort)
	raw, err := managersvc.NewManagerClient(conn).Tunnel(streamCtx, grpc.ForceCodecV2(tunnel.Codec{}))
	if err != nil {
		return nil, fmt.Errorf("open tunnel: %w", errors.Join(err, context.Cause(first)))
	}
	stream := tunnel.NewClientStream(raw, abort)
	if _, err := tunnel.Open(first, stream, info, client); err != nil {
		return nil, err
	}
	if !stop() {
		return nil, fmt.Errorf("open tunnel: %w", context.Cause(first))
	}
	if err := tunnel.WaitDialOK(limit, stream); err != nil {
		return nil, err
	}
	return stream, nil
}

// isFinal tells whether no server will take the tunnel, however often it is
// asked. What depends on state that a server may have yet to learn (who may
// reach whom, which sessions there are) is not of that kind.
func isFinal(err error) bool {
	switch errs.Code(err) {
	case codes.InvalidArgument, codes.Unimplemented, codes.Unauthenticated:
		return true
	}
	return false
}

func connID(visitor string, to netip.AddrPort) (tunnel.ConnID, error) {
	from, err := netip.ParseAddrPort(visitor)
	if err != nil {
		return "", fmt.Errorf("address of the visitor: %w", err)
	}
	return tunnel.NewConnID(tunnel.TCP, from, to)
}
