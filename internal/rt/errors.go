package rt

import (
	"errors"
	"fmt"
	"runtime/debug"
)

var (
	// ErrFull says that the mailbox had no room and the message was not
	// accepted.
	ErrFull = errors.New("mailbox is full")

	// ErrStopped says that the actor or group is stopping or stopped, or that
	// the Ref is the zero value. The message was not accepted or, from Ask,
	// will not be answered.
	ErrStopped = errors.New("actor is stopped")

	// ErrFailed says that the actor failed: from Ask, while it handled that
	// very message; from Ref.Err, so often that it was given up.
	ErrFailed = errors.New("actor failed")

	// ErrInsideActor says that an actor was about to wait inside Start or
	// Handle, where a worker has to be used.
	ErrInsideActor = errors.New("waiting inside an actor")

	// ErrOutsideActor says that a Ctx was used as a parent outside Start and
	// Handle of its actor.
	ErrOutsideActor = errors.New("actor context used outside its actor")
)

var errGoexit = errors.New("goroutine ended by runtime.Goexit")

// A PanicError is a recovered panic.
type PanicError struct {
	// Value is what was passed to panic.
	Value any
	// Stack is the stack of the goroutine at the point of the panic.
	Stack []byte
}

// Error returns the value of the panic, without the stack.
func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the value of the panic if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// newPanicError must be called by the deferred function that recovered v, so
// that the stack still shows where the panic began.
func newPanicError(v any) *PanicError {
	return &PanicError{Value: v, Stack: debug.Stack()}
}

// stackOf returns the stack of the panic in err's chain, or "".
func stackOf(err error) string {
	if p, ok := errors.AsType[*PanicError](err); ok {
		return string(p.Stack)
	}
	return ""
}

// failureAttrs are the attributes of a log record about err.
func failureAttrs(err error) []any {
	attrs := []any{"err", err}
	if s := stackOf(err); s != "" {
		attrs = append(attrs, "stack", s)
	}
	return attrs
}
