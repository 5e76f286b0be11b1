package steal

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Stats counts what became of connections, since the attachment or the proxy
// was made. The BPF program counts lookups, of which a connection can cause
// more than one (SYN cookies), and a stray packet one too.
type Stats struct {
	// Stolen were handed to us.
	Stolen uint64
	// Self were for an armed key but the pod's own, and went to the app.
	Self uint64
	// Stale were for an armed key, while no process showed a heartbeat, and
	// went to the app.
	Stale uint64
	// NoListener were for an armed key whose listener was gone, and went to
	// the app.
	NoListener uint64
	// AssignError were for an armed key, but the kernel refused our listener
	// (another program had chosen one), and went where the kernel sent them.
	AssignError uint64
	// NotArmed were for no armed key.
	NotArmed uint64
	// Direct were made to the port of our listener itself and closed. Counted
	// by each Worker for itself.
	Direct uint64
	// Overflow were for an armed key, but the queue to the agent was full, and
	// went to the app. Only a Proxy counts it.
	Overflow uint64
	// Refused were for the app, but the limit of connections was reached, or
	// the app did not answer, and were reset. Only a Proxy counts it.
	Refused uint64
}

// kernelStats is struct stats of the BPF program.
type kernelStats struct {
	Stolen, Self, Stale, NoListener, AssignError, NotArmed uint64
}

// kernelStatsSize is its size.
const kernelStatsSize = 6 * 8

func readStats(m *bpfMap) (Stats, error) {
	var k kernelStats
	err := m.with(func(m *ebpf.Map) error { return m.Lookup(uint32(0), &k) })
	if err != nil {
		return Stats{}, fmt.Errorf("read steal statistics: %w", err)
	}
	return Stats{
		Stolen: k.Stolen, Self: k.Self, Stale: k.Stale,
		NoListener: k.NoListener, AssignError: k.AssignError, NotArmed: k.NotArmed,
	}, nil
}
