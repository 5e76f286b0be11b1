package logstore

import (
	"fmt"
	"sync"
	"syscall"
	"time"
)

// Problem is something that is wrong with the disk of the log. A server with
// one should not lead while another can.
type Problem struct {
	// Reason is UPPER_SNAKE and stable.
	Reason string
	// Message says what is seen, Hint what to do; one line each.
	Message, Hint string
}

// Reasons of a Problem, beside those of errors.
const (
	// ReasonDiskFull: the file system is nearly full, or a write found no room.
	ReasonDiskFull = "DISK_FULL"
	// ReasonDiskSlow: writes take too long. Look at other servers' too: when all
	// are slow, a change of the leader helps nobody.
	ReasonDiskSlow = "DISK_SLOW"
)

const (
	// Below these the disk is nearly full: Raft needs room for a snapshot and the
	// entries that come meanwhile.
	minFreeBytes   = 64 << 20
	minFreePercent = 5
	// staleMean is how long the mean time of a write says something about now.
	staleMean = 30 * time.Second
	// lookEvery is how often the file system is asked, and lookLate when it
	// should have answered.
	lookEvery = 2 * time.Second
	lookLate  = 10 * time.Second
)

// Problems says what is wrong right now, the worst first. It does not touch
// the disk, so it never hangs.
func (s *Store) Problems() []Problem {
	var out []Problem
	add := func(reason, hint, format string, args ...any) {
		out = append(out, Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Hint: hint})
	}
	dir := s.cfg.Dir
	if err := s.failed(); err != nil {
		add(ReasonWriteFailed, "this server is about to end", "%v", err)
	}
	now := time.Now()
	s.measures.mu.Lock()
	mean, last, broken := s.measures.mean, s.measures.last, s.measures.broken
	s.measures.mu.Unlock()
	room := fmt.Sprintf("make room on the file system of %s", dir)
	switch {
	case isFull(broken):
		add(ReasonDiskFull, room, "the newest write to the log failed: %v", broken)
	case broken != nil:
		add(ReasonWriteFailed, fmt.Sprintf("look for errors of the disk under %s in the kernel's log", dir), "the newest write to the log failed: %v", broken)
	}
	sample := s.space.sample()
	switch late := now.Sub(sample.at); {
	case late > lookLate:
		add(ReasonDiskHung, fmt.Sprintf("the disk under %s does not answer", dir), "the file system of %s has not answered for %s", dir, late.Round(time.Second))
	case sample.err != nil:
		add(ReasonWriteFailed, fmt.Sprintf("the file system of %s must be mounted and readable", dir), "ask the file system of %s: %v", dir, sample.err)
	case sample.nearlyFull():
		add(ReasonDiskFull, room, "%d MiB of %d MiB are free on the file system of %s", sample.free>>20, sample.total>>20, dir)
	}
	slow := "look for what else uses that disk; the log wants one that syncs within a few milliseconds"
	if t := s.oldest(); !t.IsZero() && now.Sub(t) > s.cfg.Slow && now.Sub(t) > mean {
		mean, last = now.Sub(t), now
	}
	if mean > s.cfg.Slow && now.Sub(last) < staleMean {
		add(ReasonDiskSlow, slow, "writes to the log in %s take %s", dir, mean.Round(time.Millisecond))
	}
	return out
}

// Healthy says whether there is no problem, and the first one's message.
func (s *Store) Healthy() (ok bool, why string) {
	if p := s.Problems(); len(p) > 0 {
		return false, p[0].Message
	}
	return true, ""
}

// sample is one answer of the file system.
type sample struct {
	at          time.Time
	free, total uint64
	log         int64
	err         error
}

func (x sample) nearlyFull() bool {
	return x.free < minFreeBytes || x.free*100 < x.total*minFreePercent
}

// space asks the file system from a goroutine of its own, because a hung one
// does not answer that either.
type space struct {
	ask  func() sample
	stop chan struct{}
	done chan struct{}

	mu  sync.Mutex
	now sample // guarded by mu
}

func watchSpace(ask func() sample) *space {
	s := &space{ask: ask, now: sample{at: time.Now()}, stop: make(chan struct{}), done: make(chan struct{})}
	s.look()
	go func() {
		defer close(s.done)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				s.look()
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

func (s *space) look() {
	x := s.ask()
	x.at = time.Now()
	s.mu.Lock()
	s.now = x
	s.mu.Unlock()
}

func (s *space) sample() sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// close ends the goroutine. One that hangs is left behind: the process ends.
func (s *space) close() {
	close(s.stop)
	select {
	case <-s.done:
	case <-time.After(closeGrace):
	}
}

// askDisk asks the file system and the size of the log.
func (s *Store) askDisk() sample {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Dir, &fs); err != nil {
		return sample{err: err}
	}
	x := sample{free: fs.Bavail * uint64(fs.Bsize), total: fs.Blocks * uint64(fs.Bsize)}
	// The size is only shown; a write will tell when the log is not there.
	x.log, _ = s.backend.size()
	return x
}
