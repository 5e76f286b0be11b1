package cluster

import (
	"context"
	"time"
)

const (
	// isolatedAfter is how long a server may be without a leader before it sends
	// its peers away, to where a majority may be. Published clients give a
	// keepalive 15 s.
	isolatedAfter = 8 * time.Second
	// isolatedEvery is how often it looks.
	isolatedEvery = 250 * time.Millisecond
	// awayGrace is what streams get to end by themselves.
	awayGrace = 500 * time.Millisecond
)

// leaveIsolated sends everybody away once whenever this server has been without
// a leader for isolatedAfter, until ctx ends. Those who come back to it stay:
// they found no other server.
func (s *Server) leaveIsolated(ctx context.Context) {
	tick := time.NewTicker(isolatedEvery)
	defer tick.Stop()
	heard, alone := time.Now(), false
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		switch {
		case s.hearsLeader():
			heard, alone = time.Now(), false
		case !alone && time.Since(heard) > isolatedAfter:
			alone = true
			s.log.Warn("no majority can be reached: peers are sent to other servers", "since", isolatedAfter)
			s.sendAway()
		}
	}
}
