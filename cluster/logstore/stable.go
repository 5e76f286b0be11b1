package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
)

// keySealed is the stable value that says from which entry on all have
// checksums. Directories of builds that had none get it when they are opened.
const keySealed = "trivet.sealed-from"

var errMarkGone = errors.New("the note that its entries have checksums is gone")

// adopt reads the note, or makes it in the directory of an older build: first
// the stable values get their checksums, then the note says that they have
// them, so that it can be done again after a power cut.
func (s *Store) adopt() error {
	raw, err := s.stored(keySealed)
	if err != nil {
		return err
	}
	if raw != nil {
		v, err := unsealStable([]byte(keySealed), raw)
		if err != nil || len(v) != 8 {
			return corrupt(s.backend.file(), "the stable value "+keySealed, errors.Join(err, errLength(v, err)))
		}
		s.sealedFrom = binary.BigEndian.Uint64(v)
		return nil
	}
	var last uint64
	if err := guarded(func() (err error) { last, err = s.backend.LastIndex(); return err }); err != nil {
		return corrupt(s.backend.file(), "the index of the log", err)
	}
	s.sealedFrom = last + 1
	if last > 0 {
		var l raft.Log
		if err := guarded(func() error { return s.backend.GetLog(last, &l) }); err != nil {
			return corrupt(s.backend.file(), fmt.Sprintf("log entry %d", last), err)
		}
		if len(l.Extensions) > 0 {
			return corrupt(s.backend.file(), "the stable value "+keySealed, errMarkGone)
		}
	}
	for _, key := range stableKeys {
		raw, err := s.stored(key)
		if err != nil {
			return err
		}
		if _, err := unsealStable([]byte(key), raw); raw == nil || err == nil {
			continue
		}
		if err := s.setStored(key, raw); err != nil {
			return err
		}
	}
	return s.setStored(keySealed, binary.BigEndian.AppendUint64(nil, s.sealedFrom))
}

func errLength(v []byte, err error) error {
	if err != nil {
		return nil
	}
	return fmt.Errorf("it has %d bytes", len(v))
}

// stored reads a stable value as it is stored.
func (s *Store) stored(key string) (raw []byte, err error) {
	err = guarded(func() (err error) { raw, err = s.backend.Get([]byte(key)); return err })
	if err != nil {
		return nil, corrupt(s.backend.file(), "the stable value "+key, err)
	}
	return raw, nil
}

func (s *Store) setStored(key string, val []byte) error {
	if err := guarded(func() error { return s.backend.Set([]byte(key), sealStable([]byte(key), val)) }); err != nil {
		return writeFailed(s.cfg.Dir, key, err)
	}
	return nil
}

// Get implements raft.StableStore: nil without an error for what is not there.
// Unlike reads of the log it returns its errors also to others than Raft.
func (s *Store) Get(key []byte) ([]byte, error) {
	if err := s.failed(); err != nil {
		return nil, err
	}
	raw, err := s.stored(string(key))
	if err == nil && raw != nil {
		var v []byte
		if v, err = unsealStable(key, raw); err == nil {
			return v, nil
		}
		err = corrupt(s.backend.file(), "the stable value "+string(key), err)
	}
	if err != nil {
		s.fail(err)
	}
	return nil, err
}

// Set implements raft.StableStore. What is there already is not written again.
func (s *Store) Set(key, val []byte) error {
	if err := s.failed(); err != nil {
		return s.leave(err)
	}
	if !slices.Contains(stableKeys, string(key)) {
		return fmt.Errorf("%q is not a stable value of Raft", key)
	}
	old, err := s.Get(key)
	if err != nil {
		return s.leave(err)
	}
	if old != nil && bytes.Equal(old, val) {
		return nil
	}
	err = s.write(opStable, func() error { return s.backend.Set(key, sealStable(key, val)) })
	switch {
	case err == nil:
		return nil
	case string(key) == keyTerm:
		return s.fatalWrite("the term", err)
	}
	return fmt.Errorf("store %s in %s: %w", key, s.backend.file(), err)
}

// SetUint64 implements raft.StableStore.
func (s *Store) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 implements raft.StableStore: 0 without an error for what is not
// there.
func (s *Store) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	switch {
	case err != nil || v == nil:
		return 0, err
	case len(v) != 8:
		return 0, fmt.Errorf("the stable value %s has %d bytes", key, len(v))
	}
	return binary.BigEndian.Uint64(v), nil
}
