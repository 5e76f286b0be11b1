package replica

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/logstore"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// ErrNoState: the data directory holds no state of a server.
var ErrNoState = errors.New("the data directory holds no state")

// offline is the data of a server that does not run.
type offline struct {
	id    identity
	store *logstore.Store
	snaps *logstore.Snapshots
}

// openOffline opens a data directory, which it refuses while a server uses it.
func openOffline(dataDir string) (*offline, error) {
	dir := filepath.Join(dataDir, raftDir)
	id, err := loadID(dataDir)
	if err != nil {
		return nil, err
	}
	exists, err := logstore.Exists(dir)
	if err != nil {
		return nil, err
	}
	if id.made || !exists {
		return nil, fmt.Errorf("%w: %s", ErrNoState, dataDir)
	}
	cfg := Config{Logger: slog.New(slog.DiscardHandler), Multiplier: 1}
	o := &offline{id: id}
	if o.store, err = openLog(cfg, dir); err != nil {
		return nil, err
	}
	if o.snaps, err = logstore.OpenSnapshots(dir, snapshotsKept, nil); err != nil {
		return nil, errors.Join(err, o.store.Close())
	}
	state, err := raft.HasExistingState(o.store, o.store, o.snaps)
	if err == nil && !state {
		err = fmt.Errorf("%w: %s", ErrNoState, dataDir)
	}
	if err != nil {
		return nil, errors.Join(err, o.close())
	}
	return o, nil
}

func (o *offline) close() error { return errors.Join(o.snaps.Close(), o.store.Close()) }

// Recover gives a stopped server a configuration of exactly these members,
// whatever it was, and makes a snapshot of all that is in its log: it is for a
// cluster that has lost its majority for good. What only the lost servers had
// is lost. The server itself must be among the members, as a voter.
//
// A crash leaves either the old configuration or the new one.
func Recover(dataDir string, members []Member) (err error) {
	o, err := openOffline(dataDir)
	if err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var conf raft.Configuration
	self := false
	for _, m := range members {
		suffrage := raft.Nonvoter
		if m.Voter {
			suffrage = raft.Voter
			self = self || m.ID == o.id.id
		}
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: suffrage, ID: raft.ServerID(m.ID), Address: raft.ServerAddress(m.Address)})
	}
	if !self {
		return fmt.Errorf("recover: the server of %s, %s, is not among the voters", dataDir, o.id.id)
	}
	machine := fsm.New(fsm.Options{RingSize: 1})
	var failure error
	a := &adapter{machine: machine, applied: new(waitList), fatal: func(err error) { failure = err }}
	_, trans := raft.NewInmemTransport("")
	cfg := Config{Logger: slog.New(slog.DiscardHandler)}.withDefaults()
	if err := raft.RecoverCluster(cfg.raftConfig(raft.ServerID(o.id.id), nil), a, o.store, o.store, o.snaps, trans, conf); err != nil {
		return fmt.Errorf("recover: %w", errors.Join(failure, err))
	}
	return nil
}

// At chooses a point in the past of a server; the zero value is its end.
type At struct {
	// Index is a log entry, Revision one of the state machine's, Time the
	// leader's clock. At most one of them is set.
	Index    uint64
	Revision uint64
	Time     time.Time
}

// past says whether a state with that position is past the point.
func (at At) past(index, revision uint64, stamp int64) bool {
	switch {
	case at.Index > 0:
		return index > at.Index
	case at.Revision > 0:
		return revision > at.Revision
	case !at.Time.IsZero():
		return stamp > at.Time.UnixNano()
	}
	return false
}

// ErrCompacted: the log does not reach back that far.
var ErrCompacted = errors.New("the log does not reach back to that point")

// Replay returns the last state of a stopped server that is not past a point.
// Entries at the end of its log may never have been committed. Opening the
// directory can change files in it: give it a copy.
func Replay(dataDir string, at At) (root *fsm.Root, err error) {
	o, err := openOffline(dataDir)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	defer func() { err = errors.Join(err, o.close()) }()
	machine, next, err := o.before(at)
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	last, err := o.store.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	for ; next <= last; next++ {
		var l raft.Log
		if err := o.store.GetLog(next, &l); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				err = ErrCompacted
			}
			return nil, fmt.Errorf("replay entry %d: %w", next, err)
		}
		if l.Type != raft.LogCommand || l.Index <= machine.Root().Position().Index {
			continue
		}
		entry := new(commandv1.Entry)
		if err := proto.Unmarshal(l.Data, entry); err != nil {
			return nil, fmt.Errorf("replay entry %d: %w", next, err)
		}
		n := len(entry.GetCommands())
		if n > 0 && at.past(l.Index, machine.Root().Revision()+uint64(n), entry.GetCommands()[n-1].GetTime()) {
			break
		}
		if _, err := machine.Apply(fsm.Position{Index: l.Index, Term: l.Term}, entry); err != nil {
			return nil, fmt.Errorf("replay entry %d: %w", next, err)
		}
	}
	return machine.Root(), nil
}

// before returns a machine with the newest snapshot that is not past the point,
// or the empty one, and the entry that follows.
func (o *offline) before(at At) (*fsm.Machine, uint64, error) {
	snaps, err := o.snaps.List()
	if err != nil {
		return nil, 0, fmt.Errorf("list snapshots: %w", err)
	}
	for _, s := range snaps {
		machine := fsm.New(fsm.Options{RingSize: 1})
		_, r, err := o.snaps.Open(s.ID)
		if err != nil {
			return nil, 0, fmt.Errorf("open snapshot %s: %w", s.ID, err)
		}
		err = errors.Join(machine.Restore(r), r.Close())
		if err != nil {
			return nil, 0, fmt.Errorf("read snapshot %s: %w", s.ID, err)
		}
		if root := machine.Root(); !at.past(s.Index, root.Revision(), root.Meta().GetTime()) {
			return machine, s.Index + 1, nil
		}
	}
	first, err := o.store.FirstIndex()
	switch {
	case err != nil:
		return nil, 0, fmt.Errorf("read the log: %w", err)
	case first > 1:
		return nil, 0, ErrCompacted
	}
	return fsm.New(fsm.Options{RingSize: 1}), 1, nil
}
