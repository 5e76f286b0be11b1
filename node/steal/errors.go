package steal

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var (
	// ErrHostNetwork is returned (wrapped, with a hint) for an attachment to
	// the machine's own network namespace that was not asked for.
	ErrHostNetwork = errors.New("it is the machine's own network namespace")
	// ErrTooManyKeys is returned by Arm when MaxKeys keys are armed.
	ErrTooManyKeys = fmt.Errorf("more than %d keys", MaxKeys)
	// ErrNoIPv6 is returned by Arm for an IPv6 key in a namespace whose
	// listener is of IPv4 only. The app keeps that traffic.
	ErrNoIPv6 = errors.New("the listener takes only IPv4")
)

// ErrUnsupported says that this machine cannot steal by sk_lookup: it is too
// old, or this process has not the rights. It matches errors.ErrUnsupported.
type ErrUnsupported struct {
	// Feature is what is missing, for a person.
	Feature string
	// Err is what the kernel said.
	Err error
}

// Error returns feature and cause.
func (e *ErrUnsupported) Error() string {
	return fmt.Sprintf("%s: unsupported here: %v", e.Feature, e.Err)
}

// Unwrap returns the cause.
func (e *ErrUnsupported) Unwrap() error { return e.Err }

// Is reports whether target is errors.ErrUnsupported.
func (e *ErrUnsupported) Is(target error) bool { return target == errors.ErrUnsupported }

// unsupported returns err as *ErrUnsupported when it tells of a missing
// feature or right, and unchanged when it does not: a program that the
// verifier refuses, for one, is a defect.
func unsupported(feature string, err error) error {
	var typed *ErrUnsupported
	if err == nil || errors.As(err, &typed) {
		return err
	}
	for _, missing := range []error{ebpf.ErrNotSupported, unix.EPERM, unix.ENOSYS, unix.EOPNOTSUPP} {
		if errors.Is(err, missing) {
			return &ErrUnsupported{Feature: feature, Err: err}
		}
	}
	return err
}
