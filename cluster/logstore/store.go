package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"trivet/internal/fault"
)

// Store is a Raft log and stable store. Make it with Open, end it with Close.
type Store struct {
	cfg     Config
	backend backend
	// sealedFrom: entries from here on must have a checksum.
	sealedFrom uint64
	cache      *cache
	measures   *measures
	space      *space
	closeOnce  sync.Once
	closeErr   error

	mu       sync.Mutex
	mode     mode                  // guarded by mu
	failure  error                 // guarded by mu
	onFatal  func(error)           // guarded by mu
	underWay map[*pending]struct{} // guarded by mu
	// cut: the end of the log was removed and nothing was stored since; guarded
	// by mu.
	cut bool
}

var (
	_ raft.LogStore    = (*Store)(nil)
	_ raft.StableStore = (*Store)(nil)
)

// keyTerm is where Raft keeps its term. It panics when it cannot write that.
const keyTerm = "CurrentTerm"

// stableKeys are all that Raft sets.
var stableKeys = []string{keyTerm, "LastVoteTerm", "LastVoteCand"}

// Open opens the log in cfg.Dir, making it if there is none, and reads all of
// it once. An error about damage has ErrCorrupt in its chain.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("log store: %w", err)
	}
	cfg = cfg.withDefaults()
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
	}
	exists, err := Exists(cfg.Dir)
	if err != nil {
		return nil, err
	}
	b, err := openBolt(cfg.Dir, cfg.NoSync, !exists, map[string][]byte{
		keySealed: sealStable([]byte(keySealed), binary.BigEndian.AppendUint64(nil, 1)),
	})
	if err != nil {
		return nil, err
	}
	return adopted(cfg, b)
}

// adopted makes a Store of a backend that was opened.
func adopted(cfg Config, b backend) (*Store, error) {
	s := &Store{
		cfg: cfg, backend: b, cache: newCache(cfg.CacheEntries, cfg.CacheBytes), measures: newMeasures(),
		underWay: make(map[*pending]struct{}),
	}
	if err := errors.Join(s.adopt(), s.verify()); err != nil {
		return nil, errors.Join(err, s.backend.Close())
	}
	s.space = watchSpace(s.askDisk)
	return s, nil
}

// Kind is the kind of the store.
func (s *Store) Kind() Kind { return Bolt }

// Close releases the files. It waits for writes that are under way, but not for
// ever: a hung one does not end. It may be called again.
func (s *Store) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Store) close() error {
	s.space.close()
	grace := s.cfg.Deadline
	s.mu.Lock()
	if s.failure != nil {
		grace = closeGrace
	} else {
		s.failure = errClosed
	}
	s.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- guarded(s.backend.Close) }()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("close the log in %s: a write to it does not end", s.cfg.Dir)
	}
}

// closeGrace bounds the wait for the files of a store that failed.
const closeGrace = time.Second

// FirstIndex implements raft.LogStore.
func (s *Store) FirstIndex() (uint64, error) { return s.index(s.backend.FirstIndex) }

// LastIndex implements raft.LogStore.
func (s *Store) LastIndex() (uint64, error) { return s.index(s.backend.LastIndex) }

func (s *Store) index(ask func() (uint64, error)) (i uint64, err error) {
	if err := s.failed(); err != nil {
		return 0, s.leave(err)
	}
	err = guarded(func() (err error) { i, err = ask(); return err })
	return i, s.readResult("the index of the log", err)
}

// readResult decides about an error of a read. What cannot be read ends the
// process; only what is not there is an answer.
func (s *Store) readResult(what string, err error) error {
	if err == nil || errors.Is(err, raft.ErrLogNotFound) {
		return err
	}
	if failure := s.failed(); failure != nil {
		return s.leave(failure)
	}
	err = corrupt(s.backend.file(), what, err)
	s.measures.unreadable.Inc()
	s.fail(err)
	return s.leave(err)
}

// GetLog implements raft.LogStore. The data of the entry is shared: it must
// not be modified.
func (s *Store) GetLog(index uint64, l *raft.Log) error {
	if s.cache.get(index, l) {
		s.measures.hits.Inc()
		return nil
	}
	s.measures.misses.Inc()
	if err := s.failed(); err != nil {
		return s.leave(err)
	}
	return s.readResult(fmt.Sprintf("log entry %d", index), s.read(index, l))
}

// read reads and verifies an entry.
func (s *Store) read(index uint64, l *raft.Log) error {
	*l = raft.Log{}
	err := guarded(func() error { return s.backend.GetLog(index, l) })
	if err == nil {
		err = unseal(l, index, index >= s.sealedFrom)
	}
	return err
}

// StoreLog implements raft.LogStore.
func (s *Store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore. The data of the entries is shared: it
// must not be modified afterwards.
func (s *Store) StoreLogs(logs []*raft.Log) error {
	sealed, stored, bytes := make([]raft.Log, len(logs)), make([]*raft.Log, len(logs)), 0
	for i, l := range logs {
		sealed[i] = seal(l)
		stored[i] = &sealed[i]
		bytes += len(l.Data)
	}
	err := s.write(opAppend, func() error {
		if err := fault.Store(); err != nil {
			return injected{err}
		}
		return s.backend.StoreLogs(stored)
	})
	if err != nil {
		s.mu.Lock()
		cut := s.cut
		s.mu.Unlock()
		if cut {
			// Raft believes that the log still ends where it did before the cut and
			// would never get out of that.
			return s.fatalWrite("entries after the end of the log was removed", err)
		}
		return fmt.Errorf("store %d log entries in %s: %w", len(logs), s.backend.file(), err)
	}
	s.mu.Lock()
	s.cut = false
	s.mu.Unlock()
	s.measures.size.Observe(float64(bytes))
	s.measures.entries.Add(float64(len(logs)))
	s.cache.add(logs)
	return nil
}

// DeleteRange implements raft.LogStore.
func (s *Store) DeleteRange(first, last uint64) error {
	s.cache.remove(first, last)
	end, err := s.LastIndex()
	if err != nil {
		return err
	}
	err = s.write(opDelete, func() error { return s.backend.DeleteRange(first, last) })
	if err != nil {
		return fmt.Errorf("remove log entries %d to %d from %s: %w", first, last, s.backend.file(), err)
	}
	if last >= end {
		s.mu.Lock()
		s.cut = true
		s.mu.Unlock()
	}
	return nil
}

// injected is an error of a chaos build: nothing was written.
type injected struct{ error }

// write makes one write under the deadline and decides about its error.
func (s *Store) write(op string, do func() error) error {
	if err := s.failed(); err != nil {
		return s.leave(err)
	}
	p := s.begin()
	err := guarded(do)
	s.measures.wrote(op, s.end(p), err)
	if failure := s.failed(); failure != nil {
		return s.leave(failure)
	}
	var in injected
	var pan panicked
	switch {
	case err == nil || errors.As(err, &in):
		return err
	case errors.As(err, &pan):
		err = corrupt(s.backend.file(), "the log", err)
		s.fail(err)
		return s.leave(err)
	case isDisk(err):
		return s.fatalWrite(op, err)
	}
	return err
}

// fatalWrite ends the process for a write without which Raft cannot go on.
func (s *Store) fatalWrite(what string, err error) error {
	err = writeFailed(s.cfg.Dir, what, err)
	s.fail(err)
	return s.leave(err)
}
