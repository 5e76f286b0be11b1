package chaos

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// spawner starts processes from one thread that lives as long as it: the kernel
// ties a child's parent-death signal to the thread that forked it. The thread
// visits the network namespace that a child is to be born in.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.loop()
	}()
	return s
}

// close ends the thread. No process may be running any more.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

func (s *spawner) loop() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The first thread's namespace is the process's own to others; it stays
		// with this goroutine, so the next gets another one.
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

// start starts cmd in a namespace; it is killed when this process dies.
func (s *spawner) start(cmd *exec.Cmd, ns *netns.Handle) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	errc := make(chan error, 1)
	s.jobs <- func() { errc <- startIn(cmd, ns) }
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
		panic(fmt.Sprintf("chaos: no way back from a network namespace: %v", err))
	}
	return errors.Join(started, home.Close())
}
