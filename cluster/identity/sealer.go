package identity

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/seal"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Sealer seals and opens with the keyring of the cluster.
type Sealer struct {
	root func() *fsm.Root
	log  *slog.Logger

	ring atomic.Pointer[seal.Keyring]
	mu   sync.Mutex // serialises changes of ring
	told string     // guarded by mu; the key whose lack was logged last

	dropped atomic.Uint64
}

// NewSealer makes a sealer that starts with the keyring of this server and
// learns newer keys from the state.
func NewSealer(ring *seal.Keyring, root func() *fsm.Root, log *slog.Logger) *Sealer {
	s := &Sealer{root: root, log: log}
	s.ring.Store(ring)
	return s
}

// Dropped counts the environments that were too large to be kept.
func (s *Sealer) Dropped() uint64 { return s.dropped.Load() }

// Ring returns the keyring as the state of this moment has it.
func (s *Sealer) Ring() *seal.Keyring {
	ring := s.ring.Load()
	rows := keyRows(s.root(), KindSeal)
	if upToDate(ring, rows) {
		return ring
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ring = learn(s.ring.Load(), rows)
	s.ring.Store(ring)
	if missing := lacks(ring, rows); missing != s.told {
		s.told = missing
		if missing != "" {
			s.log.Error("a seal key of this cluster cannot be opened here", "key", missing, "hint", errs.From(unknownKey(missing)).Hint)
		}
	}
	return ring
}

// upToDate says that ring has the keys of all rows and that the one in use is
// its newest.
func upToDate(ring *seal.Keyring, rows []*commandv1.KeyRow) bool {
	for _, row := range rows {
		if !ring.Has(keyOf(row)) || row.GetActive() && ring.Active() != keyOf(row) {
			return false
		}
	}
	return true
}

// learn adds the keys of rows, each sealed under one before it, and makes the
// one in use the newest.
func learn(ring *seal.Keyring, rows []*commandv1.KeyRow) *seal.Keyring {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b *commandv1.KeyRow) int { return cmp.Compare(a.GetCreateRevision(), b.GetCreateRevision()) })
	for _, row := range rows {
		if ring.Has(keyOf(row)) {
			continue
		}
		secret, err := ring.Open(row.GetId(), row.GetSealed())
		if err != nil {
			continue
		}
		if next, err := ring.With(secret); err == nil && next.Active() == keyOf(row) {
			ring = next
		}
	}
	for _, row := range rows {
		if !row.GetActive() {
			continue
		}
		if next, err := ring.Use(keyOf(row)); err == nil {
			ring = next
		}
	}
	return ring
}

// lacks is the id of a key in rows that ring has not, "" if it has all.
func lacks(ring *seal.Keyring, rows []*commandv1.KeyRow) string {
	for _, row := range rows {
		if !ring.Has(keyOf(row)) {
			return keyOf(row)
		}
	}
	return ""
}

// Problem says why this server cannot open what the cluster seals; nil if it
// can.
func (s *Sealer) Problem() error {
	root := s.root()
	ring := s.Ring()
	if missing := lacks(ring, keyRows(root, KindSeal)); missing != "" {
		return unknownKey(missing)
	}
	if row := activeKey(root, KindIssuing); row != nil {
		_, err := ring.Open(row.GetId(), row.GetSealed())
		return err
	}
	return nil
}

// Digest implements engine.Secrets: a keyed hash, because what it is taken of
// holds secrets that could be guessed.
func (s *Sealer) Digest(data []byte) []byte { return s.ring.Load().Digest(data) }

func unknownKey(id string) error {
	// The keyring's own words.
	_, err := new(seal.Keyring).Use(id)
	return err
}
