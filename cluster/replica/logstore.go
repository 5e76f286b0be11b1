package replica

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"trivet/cluster/logstore"
)

// openLog opens the log in dir.
func openLog(cfg Config, dir string) (*logstore.Store, error) {
	m := time.Duration(cfg.Multiplier)
	return logstore.Open(logstore.Config{
		Dir: dir, NoSync: cfg.NoSync,
		Deadline: m * cmp.Or(cfg.WriteDeadline, logstore.DefaultDeadline), Slow: m * logstore.DefaultSlow,
	})
}

// LogStore is the kind of the log store.
func (r *Replica) LogStore() string { return string(r.log.Kind()) }

// DiskStats are the figures of the log and its file system.
func (r *Replica) DiskStats() logstore.Stats { return r.log.Stats() }

// DiskProblems says what is wrong with the disk of the log or the newest
// snapshot on it. A replica with a problem should not lead while another can.
func (r *Replica) DiskProblems() []logstore.Problem {
	return append(r.log.Problems(), r.snapshots.Problems()...)
}

// Collector measures the log store.
func (r *Replica) Collector() prometheus.Collector { return r.log }

// shutdownRaft stops Raft. It does not wait for ever: Raft does not end while
// it hangs in a write to the disk.
func (r *Replica) shutdownRaft() error {
	f := r.raft.Shutdown()
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errors.New("close replica: Raft hangs in a write to the disk")
	}
}

// trackedLog remembers the newest command that was stored in each term. Raft
// keeps some entries to itself (no-ops, barriers, configurations): the state
// machine never sees their indexes, so a reader that waited for the commit
// index would wait for ever on a quiet cluster.
type trackedLog struct {
	*logstore.Store
	last atomic.Pointer[logPosition]
}

type logPosition struct{ term, index uint64 }

// StoreLog stores one entry.
func (t *trackedLog) StoreLog(l *raft.Log) error { return t.StoreLogs([]*raft.Log{l}) }

// StoreLogs notes the newest command before storing, so that no reader can see
// a commit index whose command is not noted.
func (t *trackedLog) StoreLogs(logs []*raft.Log) error {
	for i := len(logs) - 1; i >= 0; i-- {
		if logs[i].Type == raft.LogCommand {
			t.last.Store(&logPosition{term: logs[i].Term, index: logs[i].Index})
			break
		}
	}
	return t.Store.StoreLogs(logs)
}

// forget drops what was noted and returns its index.
func (t *trackedLog) forget() uint64 {
	if p := t.last.Swap(nil); p != nil {
		return p.index
	}
	return 0
}

// lastCommand is the index of the newest command stored in term, or 0. A
// leader never truncates entries of its own term, so for it the answer holds.
func (t *trackedLog) lastCommand(term uint64) uint64 {
	if p := t.last.Load(); p != nil && p.term == term {
		return p.index
	}
	return 0
}
