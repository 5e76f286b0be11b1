package logstore

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// verify reads every entry and stable value once. A gap is not damage: after a
// snapshot from a leader the log may go on far behind its old end. Raft itself
// wants every entry behind the newest snapshot.
func (s *Store) verify() error {
	for _, key := range stableKeys {
		if _, err := s.Get([]byte(key)); err != nil {
			return err
		}
	}
	first, err := s.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.LastIndex()
	if err != nil {
		return err
	}
	if first == 0 {
		return nil
	}
	// From the end, where damage matters most.
	missing, term := 0, ^uint64(0)
	for i := last; i >= first; i-- {
		var l raft.Log
		err := s.read(i, &l)
		switch {
		case errors.Is(err, raft.ErrLogNotFound):
			if missing++; missing > maxGap {
				return nil
			}
			continue
		case err == nil && l.Term > term:
			err = fmt.Errorf("its term %d is above the %d of the one after it", l.Term, term)
		}
		if err != nil {
			return corrupt(s.backend.file(), fmt.Sprintf("log entry %d", i), err)
		}
		term = l.Term
	}
	return nil
}

// maxGap is how many missing entries are looked at one by one; what is before
// such a gap is in a snapshot.
const maxGap = 1 << 20
