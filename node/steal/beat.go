package steal

import (
	"fmt"
	"os"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// DefaultStaleAfter is how old the heartbeat may be before the program passes
// connections to the app. A writer should beat at least four times as often.
const DefaultStaleAfter = 500 * time.Millisecond

// Beat is the heartbeat of a traffic process: one number in a BPF map that
// every steal program reads. All attachments that one process serves share
// one.
type Beat struct {
	m *bpfMap
}

// NewBeat makes a heartbeat that was never written, which the programs take
// for stale. The holder makes it and keeps it across traffic processes.
func NewBeat() (*Beat, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("make heartbeat: %w", unsupported("locked memory for BPF maps", err))
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "trivet_beat", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("make heartbeat: %w", unsupported("BPF maps", err))
	}
	return &Beat{m: &bpfMap{m: m}}, nil
}

// AdoptBeat makes a Beat of a descriptor from File of another process. It owns
// the file, also when it fails.
func AdoptBeat(f *os.File) (*Beat, error) {
	m, err := adoptMap(f, ebpf.Array, 4, 8)
	if err != nil {
		return nil, fmt.Errorf("adopt heartbeat: %w", err)
	}
	return &Beat{m: m}, nil
}

// Write says that the traffic process serves now.
func (b *Beat) Write() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	return b.put(now)
}

// Age returns how long ago the heartbeat was written; ok is false when it
// never was. The holder watches it to find a traffic process that hangs.
func (b *Beat) Age() (age time.Duration, ok bool, err error) {
	var then uint64
	err = b.m.with(func(m *ebpf.Map) error { return m.Lookup(uint32(0), &then) })
	if err != nil {
		return 0, false, fmt.Errorf("read heartbeat: %w", err)
	}
	now, err := monotonic()
	if err != nil || then == 0 {
		return 0, false, err
	}
	return time.Duration(now) - time.Duration(then), true, nil
}

// File returns a second descriptor, for another process. The caller closes it.
func (b *Beat) File() (*os.File, error) { return b.m.file() }

// Close lets go of the heartbeat. Attachments made with it keep it.
func (b *Beat) Close() error { return b.m.close() }

func (b *Beat) clone() (*Beat, error) {
	m, err := b.m.clone()
	if err != nil {
		return nil, fmt.Errorf("duplicate heartbeat: %w", err)
	}
	return &Beat{m: m}, nil
}

func (b *Beat) put(ns uint64) error {
	err := b.m.with(func(m *ebpf.Map) error { return m.Put(uint32(0), ns) })
	if err != nil {
		return fmt.Errorf("write heartbeat: %w", err)
	}
	return nil
}

// monotonic returns the clock that bpf_ktime_get_ns reads, in nanoseconds.
func monotonic() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}
