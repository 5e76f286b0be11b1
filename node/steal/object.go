package steal

import (
	"bytes"
	_ "embed"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// object is bpf/steal.bpf.c, compiled by bpf/build.sh.
//
//go:embed steal.bpf.o
var object []byte

// Names in the object.
const (
	beatMap       = "trivet_beat"
	staleVariable = "stale_after_ns"
	// listenerSlot is the one slot of the sockmap, and what every key points
	// to.
	listenerSlot = uint32(0)
)

// kernel is the loaded object.
type kernel struct {
	Program *ebpf.Program `ebpf:"trivet_steal"`
	Ports   *ebpf.Map     `ebpf:"trivet_ports"`
	Sockets *ebpf.Map     `ebpf:"trivet_sockets"`
	Stats   *ebpf.Map     `ebpf:"trivet_stats"`
}

// load loads the object with the shared heartbeat.
func load(beat *Beat, staleAfter time.Duration) (*kernel, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, unsupported("locked memory for BPF maps", err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read steal program: %w", err)
	}
	v, ok := spec.Variables[staleVariable]
	if !ok {
		return nil, fmt.Errorf("steal program has no variable %s", staleVariable)
	}
	if err := v.Set(uint64(staleAfter.Nanoseconds())); err != nil {
		return nil, fmt.Errorf("set %s: %w", staleVariable, err)
	}
	k := &kernel{}
	err = beat.m.with(func(m *ebpf.Map) error {
		return spec.LoadAndAssign(k, &ebpf.CollectionOptions{
			MapReplacements: map[string]*ebpf.Map{beatMap: m},
		})
	})
	if err != nil {
		return nil, fmt.Errorf("load steal program: %w", unsupported("sk_lookup programs", err))
	}
	return k, nil
}
