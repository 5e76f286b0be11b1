package cluster

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"trivet/cluster/peers"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

// directory knows the other servers: who said hello, and who is in the Raft
// configuration.
type directory struct {
	self string
	pool *peers.Pool

	mu      sync.Mutex
	met     map[string]*peerv1.ServerInfo
	clocks  map[string]clockOffset
	trips   map[string]roundTrips
	servers []raft.Server
	changed chan struct{}
}

func newDirectory(self string, pool *peers.Pool) *directory {
	return &directory{self: self, pool: pool, met: make(map[string]*peerv1.ServerInfo), clocks: make(map[string]clockOffset), trips: make(map[string]roundTrips), changed: make(chan struct{}, 1)}
}

// meet records what a server said of itself. A server that comes under a new id
// has lost its data, and what it was before is forgotten.
func (d *directory) meet(info *peerv1.ServerInfo) {
	d.mu.Lock()
	for id, other := range d.met {
		if other.GetName() == info.GetName() {
			delete(d.met, id)
		}
	}
	d.met[info.GetId()] = info
	d.mu.Unlock()
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// heard records what a member said of another one, unless that one has spoken
// for itself.
func (d *directory) heard(info *peerv1.ServerInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.met[info.GetId()] == nil {
		d.met[info.GetId()] = info
	}
}

// clockOffset is how far a server's wall clock was ahead of this one's.
type clockOffset struct {
	offset time.Duration
	at     time.Time
}

// measured records the offset of a server's clock.
func (d *directory) measured(id string, offset time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clocks[id] = clockOffset{offset, time.Now()}
}

// offsets returns the clocks' offsets that were measured since then, by id.
func (d *directory) offsets(since time.Time) map[string]time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]time.Duration, len(d.clocks))
	for id, c := range d.clocks {
		if c.at.After(since) {
			out[id] = c.offset
		} else {
			delete(d.clocks, id)
		}
	}
	return out
}

// addresses lists where the other members are.
func (d *directory) addresses() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, s := range d.servers {
		if string(s.ID) != d.self {
			out = append(out, string(s.Address))
		}
	}
	return out
}

// setServers records the Raft configuration.
func (d *directory) setServers(s []raft.Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.servers = s
}

// metNames lists by name what was said by the servers of that list; complete
// is true when all of them were heard.
func (d *directory) metNames(names []string) (found []*peerv1.ServerInfo, complete bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range names {
		for _, info := range d.met {
			if info.GetName() == name {
				found = append(found, info)
			}
		}
	}
	return found, len(found) == len(names)
}

// members lists the ids in the Raft configuration with the command versions
// that they said to know.
func (d *directory) members() map[string]uint32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]uint32, len(d.servers))
	for _, s := range d.servers {
		out[string(s.ID)] = d.met[string(s.ID)].GetCommandVersion()
	}
	return out
}

// known lists what the members have said of themselves; before there are any,
// what all have said that this server has met.
func (d *directory) known() []*peerv1.ServerInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []*peerv1.ServerInfo
	if len(d.servers) == 0 {
		for _, info := range d.met {
			out = append(out, info)
		}
		return out
	}
	for _, s := range d.servers {
		if info := d.met[string(s.ID)]; info != nil {
			out = append(out, info)
		}
	}
	return out
}

// Others lists the ids of the other servers.
func (d *directory) Others() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []string
	for _, s := range d.servers {
		if string(s.ID) != d.self {
			out = append(out, string(s.ID))
		}
	}
	slices.Sort(out)
	return out
}

// ClientOf returns a client of a server by id.
func (d *directory) ClientOf(id string) (peersvc.PeerClient, error) {
	d.mu.Lock()
	addr := ""
	for _, s := range d.servers {
		if string(s.ID) == id {
			addr = string(s.Address)
		}
	}
	d.mu.Unlock()
	if addr == "" {
		return nil, fmt.Errorf("server %s is not in the configuration", id)
	}
	return d.pool.Client(addr)
}

// name turns a server id into its name, or into itself when unknown.
func (d *directory) name(id string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if info := d.met[id]; info.GetName() != "" {
		return info.GetName()
	}
	return id
}
