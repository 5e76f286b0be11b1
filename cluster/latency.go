package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// roundTripsKept is how many round trips are remembered of each server. The
	// fastest of them counts: one may have waited for a busy processor or for a
	// handshake, all of them only for the network.
	roundTripsKept = 4
	// roundTripsNeeded is how many there have to be: the first one made the
	// connection.
	roundTripsNeeded = 2
	// leaseShare is how many round trips a lease has to have room for. A leader
	// that cannot renew it in time steps down, and another one is elected, again
	// and again.
	leaseShare = 3
	// maxMultiplier is the largest raft multiplier.
	maxMultiplier = 10
)

// roundTrips are the newest round trips to one server.
type roundTrips struct {
	last []time.Duration
	at   time.Time
}

// tripped records a round trip to a server.
func (d *directory) tripped(id string, took time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t := d.trips[id]
	if len(t.last) == roundTripsKept {
		t.last = slices.Delete(t.last, 0, 1)
	}
	d.trips[id] = roundTrips{append(t.last, took), time.Now()}
}

// fastest returns the fastest of the newest round trips to each server that
// answered since then, by name.
func (d *directory) fastest(since time.Time) map[string]time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]time.Duration, len(d.trips))
	for id, t := range d.trips {
		switch {
		case t.at.Before(since):
			delete(d.trips, id)
		case len(t.last) >= roundTripsNeeded:
			out[d.met[id].GetName()] = slices.Min(t.last)
		}
	}
	return out
}

// checkLatency looks whether the network is fast enough for the lease.
func (s *Server) checkLatency() Check {
	return latencyCheck(s.dir.fastest(time.Now().Add(-offsetFresh)), s.replica.Lease(), max(s.cfg.Multiplier, 1))
}

func latencyCheck(fastest map[string]time.Duration, lease time.Duration, multiplier int) Check {
	c := Check{Name: "latency", Level: LevelOK, Message: "not measured yet"}
	var far string
	for name, d := range fastest {
		if far == "" || d > fastest[far] || d == fastest[far] && name < far {
			far = name
		}
	}
	if far == "" {
		return c
	}
	took := fastest[far]
	c.Message = fmt.Sprintf("the slowest server answers in %s, the leader's lease is %s", took.Round(100*time.Microsecond), lease)
	if took*leaseShare <= lease {
		return c
	}
	c.Level = LevelWarning
	c.Message = fmt.Sprintf("%s answers in %s, more than a third of the leader's lease of %s: leaders will lose their lead for nothing",
		far, took.Round(time.Millisecond), lease)
	base := lease / time.Duration(multiplier)
	need := int((took*leaseShare + base - 1) / base)
	c.Hint = fmt.Sprintf("set raftMultiplier to %d on all servers", need)
	if need > maxMultiplier {
		c.Hint = fmt.Sprintf("put the servers nearer to each other: even raftMultiplier %d is too little", maxMultiplier)
	}
	return c
}
