package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
)

// handshakeLimit is how long an opener may take for each of its first
// messages. They need no round trip, so it only has to cover a slow network.
const handshakeLimit = 10 * time.Second

// Reasons of this package's errors.
const (
	// ReasonHandshake: the first messages of a stream were not as they must be.
	ReasonHandshake = "TUNNEL_HANDSHAKE"
	// ReasonRejected: the dialling end did not reach its target.
	ReasonRejected = "TUNNEL_DIAL_REJECTED"
	// ReasonDisconnected: the peer closed the connection hard.
	ReasonDisconnected = "TUNNEL_DISCONNECTED"
	// ReasonMalformed: a frame violates the contract.
	ReasonMalformed = "TUNNEL_MALFORMED"
	// ReasonStream: a stream broke.
	ReasonStream = "TUNNEL_STREAM"
	// ReasonLocal: the local connection broke.
	ReasonLocal = "TUNNEL_LOCAL"
	// ReasonIdle: nothing moved for the idle limit.
	ReasonIdle = "TUNNEL_IDLE"
	// ReasonCanceled: the call's context ended.
	ReasonCanceled = "TUNNEL_CANCELED"
)

// connectError is FailedPrecondition with a text that published peers know.
func connectError(format string, args ...any) *errs.Error {
	return errs.New(codes.FailedPrecondition, ReasonHandshake,
		"failed to connect stream: %w", fmt.Errorf(format, args...))
}

// Open does the opener's handshake: StreamInfo, StreamOK and then, if
// clientSession is not empty, Session (what an agent sends to a manager). It
// returns the server's tunnel version. After an error the stream is of no use
// and the caller must cancel it.
func Open(ctx context.Context, s Stream, si StreamInfo, clientSession string) (uint64, error) {
	info, err := NewStreamInfo(si)
	if err != nil {
		return 0, err
	}
	if err := validateSession(clientSession); err != nil {
		return 0, fmt.Errorf("open tunnel: client: %w", err)
	}
	// A client stream answers io.EOF to Send when the server has ended the
	// stream; Recv then knows why.
	if err := s.Send(info); err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("open tunnel: send StreamInfo: %w", err)
	}
	m, err := recvContext(ctx, s)
	switch {
	case errors.Is(err, io.EOF):
		return 0, errs.New(codes.FailedPrecondition, ReasonHandshake,
			"open tunnel: server ended the stream before StreamOK")
	case err != nil:
		return 0, fmt.Errorf("open tunnel: wait for StreamOK: %w", err)
	}
	f, err := ParseFrame(m.GetPayload())
	if err != nil {
		return 0, errs.New(codes.FailedPrecondition, ReasonHandshake, "open tunnel: %w", err)
	}
	if f.Code != CodeStreamOK {
		return 0, errs.New(codes.FailedPrecondition, ReasonHandshake,
			"open tunnel: first reply was %s, not StreamOK", f.Code)
	}
	version, err := ParseStreamOK(f.Body)
	if err != nil {
		return 0, errs.New(codes.FailedPrecondition, ReasonHandshake, "open tunnel: StreamOK: %w", err)
	}
	if clientSession == "" {
		return version, nil
	}
	if err := s.Send(NewSession(clientSession)); err != nil {
		return 0, fmt.Errorf("open tunnel: send Session: %w", err)
	}
	return version, nil
}

// Accept does the server's handshake: StreamInfo, StreamOK. Its errors are what
// the handler should return.
func Accept(s Stream) (StreamInfo, error) {
	m, err := recvWithin(s, handshakeLimit)
	switch {
	case errors.Is(err, io.EOF):
		return StreamInfo{}, connectError("initial message was not StreamInfo")
	case err != nil:
		return StreamInfo{}, fmt.Errorf("accept tunnel: wait for StreamInfo: %w", err)
	}
	f, err := ParseFrame(m.GetPayload())
	if err != nil || f.Code != CodeStreamInfo {
		return StreamInfo{}, connectError("initial message was not StreamInfo")
	}
	si, err := ParseStreamInfo(f.Body)
	if err != nil {
		return StreamInfo{}, connectError("malformed Connect message").WithMeta("cause", err.Error())
	}
	if err := s.Send(NewStreamOK()); err != nil {
		return StreamInfo{}, fmt.Errorf("accept tunnel: send StreamOK: %w", err)
	}
	return si, nil
}

// ReadSession reads the Session message that follows an agent's StreamInfo and
// returns the client's session id. Its errors are what the handler should
// return.
func ReadSession(s Stream) (string, error) {
	m, err := recvWithin(s, handshakeLimit)
	switch {
	case errors.Is(err, io.EOF):
		return "", connectError("second message was not Session")
	case err != nil:
		return "", fmt.Errorf("accept tunnel: wait for Session: %w", err)
	}
	f, err := ParseFrame(m.GetPayload())
	if err != nil || f.Code != CodeSession {
		return "", connectError("second message was not Session")
	}
	id, err := ParseSession(f.Body)
	if err != nil {
		return "", connectError("malformed Session message").WithMeta("cause", err.Error())
	}
	return id, nil
}

// WaitDialOK waits until the dialling end says that it reached its target. An
// endpoint that calls it before it reads the local connection can still use
// another stream after an error: nothing was consumed. The error then has
// ReasonRejected (DialReject), ReasonDisconnected (Disconnect, or the stream
// ended), ReasonMalformed, or is that of ctx or of the stream. After an error
// the stream is of no use and the caller must cancel it.
func WaitDialOK(ctx context.Context, s Stream) error {
	for {
		m, err := recvContext(ctx, s)
		switch {
		case errors.Is(err, io.EOF):
			return errs.New(codes.Unavailable, ReasonDisconnected, "wait for the dial: stream ended")
		case err != nil:
			return fmt.Errorf("wait for the dial: %w", err)
		}
		f, err := ParseFrame(m.GetPayload())
		if err != nil {
			return errs.New(codes.FailedPrecondition, ReasonMalformed, "wait for the dial: %w", err)
		}
		switch f.Code {
		case CodeDialOK:
			return nil
		case CodeDialReject:
			return errs.New(codes.Unavailable, ReasonRejected, "wait for the dial: the target was not reached")
		case CodeDisconnect:
			return errs.New(codes.Unavailable, ReasonDisconnected, "wait for the dial: disconnected")
		case CodeNormal, CodeCloseSend:
			return errs.New(codes.FailedPrecondition, ReasonMalformed, "wait for the dial: %s before DialOK", f.Code)
		}
	}
}

// recvWithin is Recv with a limit.
func recvWithin(s Stream, limit time.Duration) (*manager.TunnelMessage, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit,
		errs.New(codes.DeadlineExceeded, ReasonHandshake, "no message within %s", limit))
	defer cancel()
	return recvContext(ctx, s)
}

// recvContext is Recv that gives up with ctx. Recv cannot be interrupted, so
// its goroutine then stays until the caller ends the stream, which it must.
func recvContext(ctx context.Context, s Stream) (*manager.TunnelMessage, error) {
	type result struct {
		m   *manager.TunnelMessage
		err error
	}
	got := make(chan result, 1)
	go func() {
		m, err := s.Recv()
		got <- result{m, err}
	}()
	select {
	case r := <-got:
		return r.m, r.err
	case <-ctx.Done():
		// A message that arrived in the same instant is not lost.
		select {
		case r := <-got:
			return r.m, r.err
		default:
			return nil, context.Cause(ctx)
		}
	}
}
