package cluster

import (
	"bytes"
	"context"
	"io"
	"time"

	"trivet/cluster/integrity"
	"trivet/cluster/replica"
	"trivet/fsm"
)

// Escalate says that the actors of the present term cannot go on.
func (s *Server) Escalate(err error) { s.escalate(s.replica.LeaderTerm(), err) }

// AdminAddress is where health and metrics are.
func (s *Server) AdminAddress() string { return s.admin.ln.Addr().String() }

// Operations is the server as the operator service sees it.
func (s *Server) Operations() *clusterView { return (*clusterView)(s) }

// Members lists the configuration.
func (s *Server) Members() ([]replica.Member, error) {
	list, _, err := s.replica.Members()
	return list, err
}

// Root is the server's own state.
func (s *Server) Root() *fsm.Root { return s.machine.Root() }

// Snapshot takes a snapshot of the log now.
func (s *Server) Snapshot() error { return s.replica.Snapshot() }

// Integrity is what compares the digests.
func (s *Server) Integrity() *integrity.Monitor { return s.monitor }

// SetClock makes the server believe that another one's clock is off.
func (s *Server) SetClock(id string, offset time.Duration) { s.dir.measured(id, offset) }

// LatencyCheck judges round trips.
func LatencyCheck(fastest map[string]time.Duration, lease time.Duration, multiplier int) Check {
	return latencyCheck(fastest, lease, multiplier)
}

// WorstByName is what the metric of the checks shows.
func WorstByName(checks []Check) map[string]int { return worstByName(checks) }

// MayLead is what the death watch asks.
func (s *Server) MayLead() bool { return s.mayLead() }

// Corrupt changes the server's state as no command did.
func (s *Server) Corrupt() error {
	return s.replica.SwapState(func(have *fsm.Root) (io.ReadCloser, error) {
		var buf bytes.Buffer
		_, err := s.machine.Snapshot().WithRestoreEpoch(77).WriteTo(&buf)
		return io.NopCloser(&buf), err
	})
}

// KnowsRemoveServer says whether this program knows that command.
func KnowsRemoveServer() bool { return fsm.CommandVersion >= removeServerSince }

// ReadRevision is a linearizable look by a round of ConfirmTerm.
func (s *Server) ReadRevision(ctx context.Context) (uint64, error) {
	return s.replica.ReadRevision(ctx)
}

// VerifyLeader is Raft's own round, by heartbeats (and a look at the last vote).
func (s *Server) VerifyLeader() { s.replica.VoteTerm() }

// State is the server's own state, to be written somewhere.
func (s *Server) State() *fsm.Snapshot { return s.machine.Snapshot() }

// BootID is the id of this process.
func (s *Server) BootID() string { return s.bootID }
