// Package errs carries the errors that reach a user: a code, a stable reason,
// what happened and what to do about it.
//
// The package owns the shape, not the catalogue: each package declares the
// reasons it detects. Conversion to a gRPC status happens once, at the edge of
// a service (Status), and back again once, in a client (From); nothing in
// between looks at text.
package errs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Domain is the ErrorInfo domain of every error that trivet makes.
const Domain = "trivet"

// Error is an error with a code, a reason and a hint. The zero value is not
// useful; make one with New.
type Error struct {
	// Code is the gRPC code that a client sees.
	Code codes.Code
	// Reason is UPPER_SNAKE and stable: programs may branch on it.
	Reason string
	// Message says what was attempted and why it did not work, one line.
	Message string
	// Hint says what to do, one line; may be empty.
	Hint string
	// RetryAfter asks the client to wait that long before it tries again;
	// zero when a retry would not help.
	RetryAfter time.Duration
	// Meta holds further facts by key (leader address, revision, ...).
	Meta map[string]string

	cause error
}

// New makes an Error.
func New(code codes.Code, reason, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Reason: reason, Message: err.Error(), cause: errors.Unwrap(err)}
}

// WithHint returns a copy of e with the hint set.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// WithRetry returns a copy of e that asks the client to retry after d.
func (e *Error) WithRetry(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// WithMeta returns a copy of e with one more fact.
func (e *Error) WithMeta(key, value string) *Error {
	c := *e
	c.Meta = map[string]string{key: value}
	for k, v := range e.Meta {
		if k != key {
			c.Meta[k] = v
		}
	}
	return &c
}

// Error returns the message, without hint.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the error that was wrapped with %w, if any.
func (e *Error) Unwrap() error { return e.cause }

// GRPCStatus makes an Error usable wherever grpc-go looks for a status.
func (e *Error) GRPCStatus() *status.Status {
	s := status.New(e.Code, e.Message)
	info := &errdetails.ErrorInfo{Reason: e.Reason, Domain: Domain, Metadata: e.Meta}
	if e.Hint != "" {
		meta := map[string]string{"hint": e.Hint}
		for k, v := range e.Meta {
			meta[k] = v
		}
		info.Metadata = meta
	}
	// WithDetails fails only for an OK status or a message that does not
	// marshal; neither can come from here, and the plain status is still right.
	if e.RetryAfter > 0 {
		if d, err := s.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			return d
		}
		return s
	}
	if d, err := s.WithDetails(info); err == nil {
		return d
	}
	return s
}

// Status returns the error to hand to grpc-go: an Error keeps code and
// details, context errors get their codes, a status passes, the rest is
// Internal with its text.
func Status(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e.GRPCStatus().Err()
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	switch {
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}

// From reads an error that came over gRPC (or any other) back into an Error.
// It returns nil for nil. Errors without details get the code's name as reason.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	s, ok := status.FromError(err)
	if !ok {
		switch {
		case errors.Is(err, context.Canceled):
			return New(codes.Canceled, "CANCELED", "%w", err)
		case errors.Is(err, context.DeadlineExceeded):
			return New(codes.DeadlineExceeded, "TIMEOUT", "%w", err)
		}
		return New(codes.Unknown, "UNKNOWN", "%w", err)
	}
	out := &Error{Code: s.Code(), Reason: strings.ToUpper(s.Code().String()), Message: s.Message(), cause: err}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			out.Reason = d.GetReason()
			out.Meta = d.GetMetadata()
			out.Hint = d.GetMetadata()["hint"]
		case *errdetails.RetryInfo:
			out.RetryAfter = d.GetRetryDelay().AsDuration()
		}
	}
	return out
}

// Code returns the gRPC code of err (OK for nil).
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	return From(err).Code
}

// Reason returns the reason of err ("" for nil).
func Reason(err error) string {
	if err == nil {
		return ""
	}
	return From(err).Reason
}
