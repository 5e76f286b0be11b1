package steal

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// table is the set of armed keys of a namespace, as the program reads it.
type table struct {
	m *bpfMap
}

// arm adds a canonical key.
func (t table) arm(k Key) error {
	err := t.m.with(func(m *ebpf.Map) error { return m.Put(k.encode(), listenerSlot) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("arm %v: %w", k, ErrTooManyKeys)
	}
	return fmt.Errorf("arm %v: %w", k, err)
}

// disarm removes a canonical key.
func (t table) disarm(k Key) error {
	err := t.m.with(func(m *ebpf.Map) error { return m.Delete(k.encode()) })
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("disarm %v: %w", k, err)
	}
	return nil
}

// has tells whether the program would steal for a canonical key.
func (t table) has(k Key) bool {
	var slot uint32
	return t.m.with(func(m *ebpf.Map) error {
		err := m.Lookup(k.encode(), &slot)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			err = m.Lookup(k.wildcard().encode(), &slot)
		}
		return err
	}) == nil
}

// keys returns the armed keys.
//
// Keys that come and go meanwhile may be missed or make the iteration start
// over, so a key can be seen twice: the set takes that out.
func (t table) keys() ([]Key, error) {
	seen := map[Key]bool{}
	err := t.m.with(func(m *ebpf.Map) error {
		var raw []byte
		var slot uint32
		it := m.Iterate()
		for it.Next(&raw, &slot) {
			k, err := decodeKey(raw)
			if err != nil {
				return err
			}
			seen[k] = true
		}
		return it.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("read armed keys: %w", err)
	}
	return slices.Collect(maps.Keys(seen)), nil
}

// clear removes all keys.
func (t table) clear() error {
	keys, err := t.keys()
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range keys {
		errs = append(errs, t.disarm(k))
	}
	return errors.Join(errs...)
}
