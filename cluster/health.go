package cluster

import (
	"fmt"
	"time"

	"trivet/cluster/logstore"
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

// checkDisk goes by what the log store has sampled: a disk that hangs must not
// hang the answer that says so.
func (s *Server) checkDisk() Check {
	disk := s.replica.DiskStats()
	c := Check{Name: "disk", Level: LevelOK, Message: fmt.Sprintf("%d MiB of %d MiB free", disk.FreeBytes>>20, disk.TotalBytes>>20)}
	for i, p := range s.replica.DiskProblems() {
		if i == 0 {
			c.Level, c.Message, c.Hint = LevelWarning, p.Message, p.Hint
		} else {
			c.Message += "; " + p.Message
		}
		// A full or hung disk takes no more writes; a slow one does.
		if p.Reason == logstore.ReasonDiskHung || disk.TotalBytes > 0 && disk.FreeBytes == 0 {
			c.Level = LevelCritical
		}
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
