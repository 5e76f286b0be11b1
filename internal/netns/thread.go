package netns

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadPath is the namespace of the calling thread.
const threadPath = "/proc/thread-self/ns/net"

// errExited is what a caller gets when its function ended its goroutine.
var errExited = errors.New("the function ended its goroutine instead of returning")

// Do calls fn with the thread's namespace set to h and returns its error. fn
// runs on another goroutine than the caller's and must make all its socket
// calls on that goroutine: one it starts itself runs in the process's own
// namespace. The thread is occupied until fn returns, so fn should make its
// sockets and leave the waiting to others.
func (h *Handle) Do(fn func() error) error {
	return onThread(func() error { return h.visit(fn) })
}

func (h *Handle) visit(fn func() error) (err error) {
	leave, err := h.enter()
	if err != nil {
		return err
	}
	// Deferred, because fn of a test may end its goroutine: the thread has to
	// get home then too.
	defer func() {
		if back := leave(); back != nil {
			err = errors.Join(err, back)
		}
	}()
	return fn()
}

// onThread runs fn on a goroutine of its own, locked to an OS thread that is
// not the process's first, and waits for it. fn calls UnlockOSThread when the
// thread is fit to be used again; when it does not, the runtime ends the
// thread together with the goroutine.
func onThread(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		err := errExited
		defer func() { done <- err }()
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The first thread outlives its goroutine, so it cannot be
			// discarded. It stays locked to this goroutine, which only waits;
			// the next one has to get another thread.
			err = onThread(fn)
			runtime.UnlockOSThread()
			return
		}
		err = fn()
	}()
	return <-done
}

// enter moves the calling thread, which must be locked, into the namespace.
// The returned function takes it back and unlocks it, or leaves it locked when
// there is no way back. When enter itself fails, the thread never left.
func (h *Handle) enter() (leave func() error, err error) {
	home, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	if err := h.set(); err != nil {
		home.Close()
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("enter network namespace %v: %w", h, err)
	}
	return func() error {
		defer home.Close()
		if err := home.set(); err != nil {
			return fmt.Errorf("return from network namespace %v: %w", h, err)
		}
		runtime.UnlockOSThread()
		return nil
	}, nil
}

// set puts the calling thread into the namespace.
func (h *Handle) set() error {
	return h.withFD(func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) })
}
