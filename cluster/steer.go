package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"trivet/cluster/integrity"
	"trivet/internal/fault"
)

const (
	// maxSkew is how far the clocks of servers may be apart.
	maxSkew = 2 * time.Second
	// steerEvery is how often a leader asks itself whether it should be one.
	// It is less than an election takes: a server that has just lost the lead
	// because its log cannot be written is not to win it back.
	steerEvery = 100 * time.Millisecond
	// handOverEvery limits the handing over: what is wrong here may be wrong
	// everywhere.
	handOverEvery = 10 * time.Second
	// offsetFresh is how long a measured offset of a clock counts.
	offsetFresh = 4 * helloIdle
)

// steering keeps a server that is ill from leading while another one can.
type steering struct {
	// unfit says why this server should not lead; nil: it may. Stored by steer.
	unfit     atomic.Pointer[string]
	handovers atomic.Uint64
}

// mayLead is what the death watch asks.
func (s *Server) mayLead() bool { return s.steering.unfit.Load() == nil }

// steer hands leadership over while this server should not lead.
func (s *Server) steer(ctx context.Context) {
	defer s.wg.Done()
	tick := time.NewTicker(steerEvery)
	defer tick.Stop()
	var last time.Time
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		why := s.unfitness()
		leads := s.replica.LeaderTerm() != 0
		leader, _ := s.replica.Leader()
		if err := s.replica.SetReluctant(why != "" && !leads && leader == ""); err != nil {
			s.log.Error("elections cannot be left to the others", "err", err)
		}
		if why == "" {
			s.steering.unfit.Store(nil)
			continue
		}
		s.steering.unfit.Store(&why)
		if !leads || len(s.dir.Others()) == 0 || !last.IsZero() && time.Since(last) < handOverEvery {
			continue
		}
		last = time.Now()
		if err := s.replica.TransferLeadership("", ""); err != nil {
			s.log.Error("this server should not lead but could not hand leadership over", "reason", why, "err", err)
			continue
		}
		s.steering.handovers.Add(1)
		s.log.Warn("handed leadership over", "reason", why)
	}
}

// unfitness says why this server should not lead; empty: it may.
func (s *Server) unfitness() string {
	if s.monitor.Diverged() {
		return "its state differs from that of the majority"
	}
	if skew, odd := s.clockSkew(); odd {
		return fmt.Sprintf("its clock is %s off those of the majority", skew.Round(time.Millisecond))
	}
	if p := s.replica.DiskProblems(); len(p) > 0 {
		return p[0].Message
	}
	return ""
}

// clockSkew compares this server's wall clock with those of the others. skew is
// the largest difference to one of them, or, when a majority of the servers
// agree among themselves and this one is odd, its difference to theirs.
func (s *Server) clockSkew() (skew time.Duration, odd bool) {
	list, _, err := s.replica.Members()
	if err != nil {
		return 0, false
	}
	offsets := s.dir.offsets(time.Now().Add(-offsetFresh))
	others := make([]time.Duration, 0, len(list))
	for _, x := range list {
		if o, ok := offsets[x.ID]; ok {
			others = append(others, o)
			if o.Abs() > skew.Abs() {
				skew = o
			}
		}
	}
	if skew.Abs() <= maxSkew {
		return skew, false
	}
	// A majority that is close together and away from this server's clock.
	slices.Sort(others)
	need := len(list)/2 + 1
	for i := 0; i+need <= len(others); i++ {
		low, high := others[i], others[i+need-1]
		if high-low <= maxSkew && (low > maxSkew || high < -maxSkew) {
			return low + (high-low)/2, true
		}
	}
	return skew, false
}

// offsetOf is how far a peer's clock is ahead of this server's, from a question
// that was asked at `asked` and answered now.
func offsetOf(peer int64, asked time.Time) time.Duration {
	now := fault.Now()
	return time.Duration(peer - now.UnixNano() + int64(time.Since(asked)/2))
}

// raftChecks are the checks of this file's and its neighbours' matters.
func (s *Server) raftChecks() []Check {
	return []Check{s.checkStanding(), s.checkClock(), s.checkLatency(), s.checkDigest()}
}

func (s *Server) checkClock() Check {
	skew, odd := s.clockSkew()
	c := Check{Name: "clock", Level: LevelOK, Message: fmt.Sprintf("within %s of the other servers", skew.Abs().Round(time.Millisecond))}
	if skew.Abs() <= maxSkew {
		return c
	}
	c.Level, c.Hint = LevelWarning, "set the clocks of all servers from the same source (NTP)"
	c.Message = fmt.Sprintf("a server's clock is %s away from this one's", skew.Round(time.Millisecond))
	if odd {
		c.Message = fmt.Sprintf("this server's clock is %s away from those of the majority; it does not lead", skew.Round(time.Millisecond))
	}
	return c
}

func (s *Server) checkDigest() Check {
	c := Check{Name: "digest", Level: LevelOK}
	st := s.monitor.Status()
	switch {
	case st.Diverged:
		c.Level, c.Message = LevelCritical, "this server's state differs from that of the majority"
		c.Hint = "it takes theirs over by itself; if that does not end, replace it and keep its data directory for an analysis"
	case st.Disputed:
		c.Level, c.Message = LevelWarning, st.Detail
		c.Hint = "no majority says whose state is right: bring all servers up; compare with `trivet operator digest`"
	case st.Detail != "":
		c.Level, c.Message = LevelWarning, st.Detail
		c.Hint = "look at the health of the other servers"
	default:
		c.Message = fmt.Sprintf("equal on a majority at revision %d", st.Compared)
	}
	return c
}

var _ integrity.Peers = comparer{}
