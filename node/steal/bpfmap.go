package steal

import (
	"fmt"
	"os"
	"sync"

	"github.com/cilium/ebpf"
)

// bpfMap is a map that may be closed while others use it, which the library's
// own may not: a use then gets os.ErrClosed.
type bpfMap struct {
	mu sync.RWMutex
	m  *ebpf.Map // nil when closed; guarded by mu
}

// with calls fn with the open map.
func (b *bpfMap) with(fn func(*ebpf.Map) error) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.m == nil {
		return os.ErrClosed
	}
	return fn(b.m)
}

// file returns a second descriptor of the map.
func (b *bpfMap) file() (f *os.File, err error) {
	err = b.with(func(m *ebpf.Map) error {
		f, err = rawFile(m.FD(), "steal map")
		return err
	})
	return f, err
}

// clone returns a second bpfMap of the map, closed on its own.
func (b *bpfMap) clone() (c *bpfMap, err error) {
	err = b.with(func(m *ebpf.Map) error {
		dup, err := m.Clone()
		if err != nil {
			return fmt.Errorf("duplicate map: %w", err)
		}
		c = &bpfMap{m: dup}
		return nil
	})
	return c, err
}

// close closes the map; nil and a second time are no error.
func (b *bpfMap) close() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.m
	b.m = nil
	return m.Close() // nil-safe
}

// adoptMap makes a map of a descriptor and checks that it is of the expected
// shape: descriptors that travelled can arrive in the wrong order.
func adoptMap(f *os.File, kind ebpf.MapType, key, value uint32) (*bpfMap, error) {
	fd, err := release(f)
	if err != nil {
		return nil, err
	}
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		return nil, err
	}
	if m.Type() != kind || m.KeySize() != key || m.ValueSize() != value {
		m.Close()
		return nil, fmt.Errorf("map is %v %d→%d, want %v %d→%d",
			m.Type(), m.KeySize(), m.ValueSize(), kind, key, value)
	}
	return &bpfMap{m: m}, nil
}
