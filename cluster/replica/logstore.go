package replica

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// trackedLog remembers the newest command that was stored in each term. Raft
// keeps some entries to itself (no-ops, barriers, configurations): the state
// machine never sees their indexes, so a reader that waited for the commit
// index would wait for ever on a quiet cluster.
type trackedLog struct {
	raft.LogStore
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
	return t.LogStore.StoreLogs(logs)
}

// lastCommand is the index of the newest command stored in term, or 0. A
// leader never truncates entries of its own term, so for it the answer holds.
func (t *trackedLog) lastCommand(term uint64) uint64 {
	if p := t.last.Load(); p != nil && p.term == term {
		return p.index
	}
	return 0
}
