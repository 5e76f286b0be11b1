package cluster

import (
	"fmt"
	"slices"
	"sync"

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
	servers []raft.Server
	changed chan struct{}
}

func newDirectory(self string, pool *peers.Pool) *directory {
	return &directory{self: self, pool: pool, met: make(map[string]*peerv1.ServerInfo), changed: make(chan struct{}, 1)}
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
