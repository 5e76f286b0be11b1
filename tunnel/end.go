package tunnel

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// outcome is how one direction, or a whole stream, ended.
type outcome struct {
	end End
	// err is the cause, nil if there is none beyond end itself.
	err error
}

// Causes that have no error of their own.
var (
	errCutOff = errors.New("the server ended the stream before it took all bytes")
	errGone   = errors.New("the opener is gone")
)

var clean = outcome{end: EndClean}

// asError returns what a caller gets to see of o: nil for a clean end.
func (o outcome) asError() error {
	switch o.end {
	case EndClean:
		return nil
	case EndDisconnected:
		return errs.New(codes.Aborted, ReasonDisconnected, "tunnel: the peer closed the connection")
	case EndRejected:
		return errs.New(codes.Unavailable, ReasonRejected, "tunnel: the peer did not reach the target")
	case EndLocal:
		return errs.New(codes.Aborted, ReasonLocal, "tunnel: local connection: %w", o.err)
	case EndMalformed:
		return errs.New(codes.FailedPrecondition, ReasonMalformed, "tunnel: %w", o.err)
	case EndIdle:
		return errs.New(codes.DeadlineExceeded, ReasonIdle, "tunnel: nothing moved for the idle limit")
	case EndCanceled:
		// Who ended the context may have said why in terms for the user.
		var why *errs.Error
		if errors.As(o.err, &why) {
			return why
		}
		code := codes.Canceled
		if errors.Is(o.err, context.DeadlineExceeded) {
			code = codes.DeadlineExceeded
		}
		return errs.New(code, ReasonCanceled, "tunnel: %w", o.err)
	}
	code := errs.Code(o.err)
	if code == codes.Unknown || errors.Is(o.err, io.EOF) {
		code = codes.Unavailable
	}
	return errs.New(code, ReasonStream, "tunnel: stream: %w", o.err)
}
