// Package spawn starts processes that end with this one, in a network
// namespace of the caller's choice.
//
// The kernel ties a child's parent-death signal to the thread that forked it, so
// that a Spawner forks on one thread that lives as long as it. The thread visits
// the namespace that a child is to be born in. A Spawner is safe for concurrent
// use.
package spawn

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// Spawner owns the thread from which processes are started.
type Spawner struct {
	jobs chan func()
	done chan struct{}
}

// New starts the thread. The caller closes the Spawner.
func New() *Spawner {
	s := &Spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.loop()
	}()
	return s
}

func (s *Spawner) loop() {
	// Never unlocked: the thread ends with its goroutine.
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread's namespace is what others see as the process's, and it
		// cannot end before the process. It stays with this goroutine, so that the
		// next gets another one.
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.loop()
		}()
		<-done
		return
	}
	for job := range s.jobs {
		job()
	}
}

// Start starts cmd as the leader of a process group that gets sig when this
// process dies; in namespace ns, or in this process's when ns is nil. It sets
// cmd.SysProcAttr. It may not be called after Close.
func (s *Spawner) Start(cmd *exec.Cmd, ns *netns.Handle, sig syscall.Signal) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: sig, Setpgid: true}
	errc := make(chan error, 1)
	s.jobs <- func() {
		if ns == nil {
			errc <- cmd.Start()
			return
		}
		errc <- startIn(cmd, ns)
	}
	return <-errc
}

func startIn(cmd *exec.Cmd, ns *netns.Handle) error {
	home, err := netns.Current()
	if err != nil {
		return err
	}
	enter := func(h *netns.Handle) error {
		return h.WithFD(func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNET) })
	}
	if err := enter(ns); err != nil {
		return errors.Join(err, home.Close())
	}
	started := cmd.Start()
	if err := enter(home); err != nil {
		// Every later child would be in the wrong place.
		panic(fmt.Sprintf("spawn: no way back from a network namespace: %v", err))
	}
	return errors.Join(started, home.Close())
}

// Close ends the thread: the kernel sends every process that still runs its
// signal.
func (s *Spawner) Close() {
	close(s.jobs)
	<-s.done
}
