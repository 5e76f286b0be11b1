package cluster

import (
	"fmt"
	"syscall"
	"time"
)

// Levels of a Check.
const (
	LevelOK       = "ok"
	LevelWarning  = "warning"
	LevelCritical = "critical"
)

// Check is one thing that a server knows about its own health. A critical one
// makes the server unready.
type Check struct {
	Name, Level, Message, Hint string
}

const (
	// Below these the disk is nearly full: raft needs room for a snapshot and the
	// entries that come meanwhile.
	minFreeBytes   = 64 << 20
	minFreePercent = 5
	// certificateWarning is how much of a certificate's time may be left before
	// somebody should be told; servers renew theirs earlier.
	certificateWarning = 24 * time.Hour
)

// Checks looks at this server. Nothing in it waits for another server.
func (s *Server) Checks() []Check {
	out := []Check{s.checkLeader(), s.checkDisk(), s.checkCertificate()}
	for _, more := range s.checks {
		out = append(out, more()...)
	}
	return out
}

func (s *Server) checkLeader() Check {
	c := Check{Name: "leader", Level: LevelOK, Message: "in contact with a leader"}
	if !s.hearsLeader() {
		c.Level, c.Message = LevelCritical, "no contact with a leader"
		c.Hint = "a majority of the servers has to run and reach each other: trivet status"
	}
	return c
}

func (s *Server) checkDisk() Check {
	c := Check{Name: "disk", Level: LevelOK}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.DataDir, &fs); err != nil {
		return Check{Name: "disk", Level: LevelCritical, Message: fmt.Sprintf("the file system of %s does not answer: %v", s.cfg.DataDir, err)}
	}
	free, total := fs.Bavail*uint64(fs.Bsize), fs.Blocks*uint64(fs.Bsize)
	c.Message = fmt.Sprintf("%d MiB of %d MiB free", free>>20, total>>20)
	if free < minFreeBytes || free*100 < total*minFreePercent {
		c.Level = LevelWarning
		c.Hint = fmt.Sprintf("make room on the file system of %s; a full one stops this server", s.cfg.DataDir)
	}
	if free == 0 {
		c.Level = LevelCritical
	}
	return c
}

func (s *Server) checkCertificate() Check {
	b := s.cfg.Source.Bundle()
	left := time.Until(b.NotAfter)
	c := Check{Name: "certificate", Level: LevelOK, Message: fmt.Sprintf("valid until %s", b.NotAfter.UTC().Format(time.RFC3339))}
	switch {
	case left <= 0:
		c.Level, c.Message = LevelCritical, fmt.Sprintf("ended at %s", b.NotAfter.UTC().Format(time.RFC3339))
	case left < certificateWarning:
		c.Level = LevelWarning
	}
	if c.Level != LevelOK {
		c.Hint = "the server renews it by itself while it can reach a leader; look for renewal errors in its log"
	}
	return c
}
