package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"trivet/fsm"
)

// Timeouts at multiplier 1. Heartbeat and election are equal and the lease is
// half of them: measured on a busy two-core machine, shorter ones flap and
// longer ones only lengthen the failovers that the death watch does not see.
const (
	baseHeartbeat = 500 * time.Millisecond
	baseLease     = 250 * time.Millisecond
	// commitTimeout is how soon followers are told that an entry is committed
	// when no other entry follows. A write through a follower and every watch on
	// one wait for that: measured on three servers, 10 ms per write instead of
	// 100 with 50 ms here, for 2 % of a core more when idle.
	commitTimeout = 5 * time.Millisecond
)

// Bounds of the proposer.
const (
	queueCommands   = 4096
	queueBytes      = 4 << 20
	entryCommands   = 256
	entryBytes      = 256 << 10
	entriesInFlight = 2
	// maxCommandBytes bounds one command; larger things belong in blobs.
	maxCommandBytes = 512 << 10
)

// Config of a Replica.
type Config struct {
	// DataDir holds the server id, the log and the snapshots. Created with mode
	// 0700.
	DataDir string
	// Advertise is the address that other servers dial, host:port.
	Advertise string
	// Multiplier scales all Raft timeouts, 1 to 10; 0 means 1.
	Multiplier int
	// Machine is the state machine to drive. The replica is its only writer.
	Machine *fsm.Machine
	// Stream carries Raft's connections.
	Stream raft.StreamLayer
	// AskTerm asks another server for the newest term it knows; required for
	// linearizable reads with more than one voter.
	AskTerm AskTerm
	// Cluster is the name of the cluster, recorded in the data directory; a
	// directory of another one is refused. Empty: not looked at.
	Cluster string
	// Logger receives this package's and Raft's records.
	Logger *slog.Logger

	// SnapshotThreshold is the number of log entries after which a snapshot is
	// taken; 0 means 8192.
	SnapshotThreshold uint64
	// SnapshotInterval is how often the threshold is looked at; 0 means 30 s.
	SnapshotInterval time.Duration
	// TrailingLogs is the number of entries kept behind a snapshot for slow
	// followers; 0 means 10240.
	TrailingLogs uint64
	// WriteDeadline is how long a write to the log may take at multiplier 1
	// before the process has to end; 0 means logstore.DefaultDeadline.
	WriteDeadline time.Duration
	// NoSync skips fsync. For benches only: an acknowledged write can be lost.
	NoSync bool
}

func (c Config) withDefaults() Config {
	if c.Multiplier == 0 {
		c.Multiplier = 1
	}
	if c.SnapshotThreshold == 0 {
		c.SnapshotThreshold = 8192
	}
	if c.SnapshotInterval == 0 {
		c.SnapshotInterval = 30 * time.Second
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 10240
	}
	if c.AskTerm == nil {
		c.AskTerm = func(context.Context, Voter) (uint64, error) { return 0, errors.New("there is no way to ask") }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate reports everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.DataDir == "" {
		errs = append(errs, errors.New("data directory is not set"))
	}
	if c.Advertise == "" {
		errs = append(errs, errors.New("advertise address is not set"))
	}
	if c.Multiplier < 0 || c.Multiplier > 10 {
		errs = append(errs, fmt.Errorf("raft multiplier %d is not between 1 and 10", c.Multiplier))
	}
	if c.Machine == nil {
		errs = append(errs, errors.New("no state machine"))
	}
	if c.Stream == nil {
		errs = append(errs, errors.New("no stream layer"))
	}
	return errors.Join(errs...)
}

func (c Config) raftConfig(id raft.ServerID, notify chan<- bool) *raft.Config {
	rc := raft.DefaultConfig()
	m := time.Duration(c.Multiplier)
	rc.LocalID = id
	rc.HeartbeatTimeout = baseHeartbeat * m
	rc.ElectionTimeout = baseHeartbeat * m
	rc.LeaderLeaseTimeout = baseLease * m
	rc.CommitTimeout = commitTimeout
	rc.MaxAppendEntries = 64
	rc.ShutdownOnRemove = false
	rc.SnapshotThreshold = c.SnapshotThreshold
	rc.SnapshotInterval = c.SnapshotInterval
	rc.TrailingLogs = c.TrailingLogs
	rc.NotifyCh = notify
	rc.NoLegacyTelemetry = true
	rc.Logger = newHCLog(c.Logger.With("component", "raft"))
	return rc
}
