package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"trivet/cluster/logstore"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	raftDir       = "raft"
	snapshotsKept = 2
	// transportTimeout bounds one Raft RPC; a stopped peer makes calls hang that
	// long.
	transportTimeout = 10 * time.Second
	transportPool    = 3
	leaderSlots      = 8
	// closeGrace bounds the wait for Raft's answers while closing.
	closeGrace = 5 * time.Second
)

// Replica is one voter. Make it with Open, end it with Close.
type Replica struct {
	cfg       Config
	id        raft.ServerID
	raft      *raft.Raft
	transport transport
	log       *logstore.Store
	snapshots *logstore.Snapshots
	tracked   *trackedLog
	adapter   *adapter
	proposer  *proposer
	clock     *stampClock
	pauses    *pauseDetector
	confirmer *confirmer
	verifier  *verifier
	book      *addressBook
	hasState  bool
	fresh     bool

	notify     chan bool
	leadership chan Leadership
	fatal      chan error
	fatalOnce  sync.Once
	term       atomic.Uint64
	stop       chan struct{}
	wg         sync.WaitGroup
	barriers   sync.WaitGroup
}

// Leadership tells that this replica began or ended to lead. Established is
// true only after the barrier: the state machine then holds every entry of
// earlier terms.
type Leadership struct {
	Established bool
	Term        uint64
}

// Open opens the data directory, making it on first use, and starts Raft. A
// directory whose id exists while its Raft state is gone is refused: a voter
// that forgot its votes could elect a second leader.
func Open(cfg Config) (*Replica, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("open replica: %w", err)
	}
	cfg = cfg.withDefaults()
	dir := filepath.Join(cfg.DataDir, raftDir)
	id, err := loadID(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	if exists, err := logstore.Exists(dir); err != nil {
		return nil, err
	} else if !exists && !id.made {
		return nil, fmt.Errorf("%w: %s names server %s but its Raft state is missing", ErrForeignData, cfg.DataDir, id.id)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if err := checkCluster(cfg.DataDir, cfg.Cluster); err != nil {
		return nil, err
	}
	store, err := openLog(cfg, dir)
	if err != nil {
		return nil, err
	}
	r, err := start(cfg, id, dir, store)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return r, nil
}

func start(cfg Config, self identity, dir string, store *logstore.Store) (*Replica, error) {
	id := raft.ServerID(self.id)
	snaps, err := logstore.OpenSnapshots(dir, snapshotsKept, newHCLog(cfg.Logger.With("component", "snapshot")))
	if err != nil {
		return nil, err
	}
	hasState, err := raft.HasExistingState(store, store, snaps)
	if err != nil {
		return nil, fmt.Errorf("read Raft state in %s: %w", dir, err)
	}
	switch {
	case hasState && self.made:
		return nil, fmt.Errorf("%w: %s holds the Raft state of a server, but the file %s that named it is missing",
			ErrForeignData, dir, idFile)
	case !hasState && !self.unborn:
		return nil, fmt.Errorf("%w: %s names server %s, which has had Raft state, but there is none", ErrForeignData, cfg.DataDir, id)
	case self.made:
		// Written when the log is there: an id without one is the sign of a wiped
		// disk.
		if err := saveID(cfg.DataDir, self); err != nil {
			return nil, err
		}
	}
	r := &Replica{
		cfg: cfg, id: id, log: store, snapshots: snaps, hasState: hasState, fresh: self.made,
		clock:      new(stampClock),
		notify:     make(chan bool, leaderSlots),
		leadership: make(chan Leadership),
		fatal:      make(chan error, 1),
		stop:       make(chan struct{}),
	}
	r.tracked = &trackedLog{Store: store}
	r.adapter = &adapter{machine: cfg.Machine, applied: new(waitList), fatal: r.fail, tracked: r.tracked}
	stable := &birth{StableStore: store, note: func() error {
		err := saveID(cfg.DataDir, identity{id: self.id})
		if err != nil {
			r.report(err)
			// Raft would panic on the error; the process ends anyway.
			runtime.Goexit()
		}
		return nil
	}}
	book := new(addressBook)
	r.book = book
	r.transport = transport{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: addressed{cfg.Stream, id}, ServerAddressProvider: book, MaxPool: transportPool, MaxRPCsInFlight: 1, Timeout: transportTimeout,
		MsgpackUseNewTimeFormat: true, Logger: newHCLog(cfg.Logger.With("component", "raft-transport")),
	})}
	err = store.Serve(r.report, func() (err error) {
		r.raft, err = raft.NewRaft(cfg.raftConfig(id, r.notify), r.adapter, r.tracked, stable, snaps, r.transport)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start Raft: %w", err), r.transport.Close())
	}
	book.raft.Store(r.raft)
	r.proposer = newProposer(r.raft, r.clock)
	r.pauses = newPauseDetector(baseHeartbeat * time.Duration(cfg.Multiplier) / 2)
	r.confirmer = &confirmer{
		self: self.id, voters: r.voters, term: r.raft.CurrentTerm, ask: cfg.AskTerm,
		timeout: confirmTimeout * time.Duration(cfg.Multiplier), pauses: r.pauses,
	}
	r.verifier = newVerifier(r.confirmer.confirm)
	r.wg.Add(1)
	go r.monitor()
	return r, nil
}

// Close stops Raft and releases the data directory. Commands in flight end
// with ErrUnknownOutcome. It is called once.
func (r *Replica) Close() error {
	close(r.stop)
	// Raft never answers some of the futures that are under way when it shuts
	// down, so whatever waits for one ends before that. Alive, it answers all of
	// them soon, unless its disk hangs.
	idle := make(chan struct{})
	go func() {
		defer close(idle)
		r.wg.Wait()
		r.barriers.Wait()
		r.proposer.close()
		r.verifier.close()
	}()
	within(idle, closeGrace)
	r.pauses.close()
	err := r.shutdownRaft()
	if !within(idle, closeGrace) {
		err = errors.Join(err, errors.New("close replica: Raft did not answer all that it was asked"))
	}
	// Closing the transport leaves its idle connections open.
	r.transport.CloseStreams()
	return errors.Join(err, r.transport.Close(), r.snapshots.Close(), r.log.Close())
}

// within says whether ch was closed within d.
func within(ch <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ch:
		return true
	case <-timer.C:
		return false
	}
}

// report passes on the first error after which the process has to end.
func (r *Replica) report(err error) {
	r.fatalOnce.Do(func() {
		r.cfg.Logger.Error("this replica cannot go on", "err", err)
		r.fatal <- err
	})
}

func (r *Replica) fail(err error) {
	r.report(err)
	// Raft must not apply anything after this entry.
	<-r.stop
}

// Fatal delivers the error after which the process has to end; at most one.
func (r *Replica) Fatal() <-chan error { return r.fatal }

// ID is the server's UUID, kept in the data directory.
func (r *Replica) ID() string { return string(r.id) }

// HasState says whether the data directory held Raft state when it was opened.
func (r *Replica) HasState() bool { return r.hasState }

// Fresh says whether the server's id was made when it was opened: nobody can
// know it.
func (r *Replica) Fresh() bool { return r.fresh }

// Bootstrap writes the first configuration. All first servers write the same
// list, sorted by id; writing it where state exists is not an error.
func (r *Replica) Bootstrap(servers []raft.Server) error {
	err := r.raft.BootstrapCluster(raft.Configuration{Servers: servers}).Error()
	if err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}

// Propose gives commands to the log as the leader and waits until this
// replica's state machine has applied them. The commands stay the caller's,
// their operations must not be modified any more.
func (r *Replica) Propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	if r.raft.State() != raft.Leader {
		return nil, ErrNotLeader
	}
	return r.proposer.propose(ctx, cmds)
}

// WaitRevision returns once the state machine is at or past revision.
func (r *Replica) WaitRevision(ctx context.Context, revision uint64) error {
	return r.adapter.applied.waitRevision(ctx, revision)
}

// Leader returns id and address of the leader as this replica knows it; both
// empty when it knows none.
func (r *Replica) Leader() (id, address string) {
	a, i := r.raft.LeaderWithID()
	return string(i), string(a)
}

// IsLeader says whether this replica leads right now, barrier or not.
func (r *Replica) IsLeader() bool { return r.raft.State() == raft.Leader }

// LeaderTerm is the term in which this replica leads with its barrier passed;
// 0 when it does not.
func (r *Replica) LeaderTerm() uint64 { return r.term.Load() }

// Lease is how long a leader may go without hearing from a majority.
func (r *Replica) Lease() time.Duration { return baseLease * time.Duration(r.cfg.Multiplier) }

// reluctance is how many times longer than the others a reluctant replica waits
// before it stands for election.
const reluctance = 4

// SetReluctant has this replica leave the next election to the others; it still
// votes, and stands when nobody else does. It is for one that knows no leader:
// while it leads it would send fewer heartbeats, and while it follows it would
// believe in a leader that is gone for longer, and refuse its vote to the others.
func (r *Replica) SetReluctant(on bool) error {
	rc := r.raft.ReloadableConfig()
	timeout := baseHeartbeat * time.Duration(r.cfg.Multiplier)
	if on {
		timeout *= reluctance
	}
	if rc.HeartbeatTimeout == timeout {
		return nil
	}
	rc.HeartbeatTimeout, rc.ElectionTimeout = timeout, timeout
	if err := r.raft.ReloadConfig(rc); err != nil {
		return fmt.Errorf("change the election timeout: %w", err)
	}
	return nil
}

// Term is the current term.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// LastContact is when the leader was last heard of (now, on the leader).
func (r *Replica) LastContact() time.Time {
	if r.IsLeader() {
		return time.Now()
	}
	return r.raft.LastContact()
}

// Servers returns the latest configuration.
func (r *Replica) Servers() ([]raft.Server, error) {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return f.Configuration().Servers, nil
}

// ElectNow makes this replica a candidate at once, without the pre-vote and
// without waiting for a timeout. Only the death watch may do that, with
// evidence that the leader is gone.
func (r *Replica) ElectNow() error {
	req := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{
		ProtocolVersion: raft.ProtocolVersionMax,
		ID:              []byte(r.id),
		Addr:            r.transport.EncodePeer(r.id, raft.ServerAddress(r.cfg.Advertise)),
	}}
	var resp raft.TimeoutNowResponse
	if err := r.transport.TimeoutNow(r.id, raft.ServerAddress(r.cfg.Advertise), req, &resp); err != nil {
		return fmt.Errorf("start election: %w", err)
	}
	return nil
}

// SwapState replaces the state by another server's while nothing is applied,
// and takes a snapshot of it. fetch is called with the state as it is and
// returns a snapshot of the state machine at or above it. Log, term and vote
// are not touched.
func (r *Replica) SwapState(fetch func(have *fsm.Root) (io.ReadCloser, error)) error {
	if err := r.adapter.swap(fetch); err != nil {
		return fmt.Errorf("swap the state: %w", err)
	}
	return r.Snapshot()
}

// ConfirmStats returns the counters of the rounds of confirmation.
func (r *Replica) ConfirmStats() ConfirmStats {
	c := r.confirmer
	return ConfirmStats{Rounds: c.rounds.Load(), Failed: c.failed.Load(), Redone: c.redone.Load()}
}

// Snapshot takes a snapshot now.
func (r *Replica) Snapshot() error {
	if err := r.raft.Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("snapshot: %w", err)
	}
	return nil
}

// Stats are counters of the proposer.
type Stats struct {
	// Entries and Commands were handed to Raft; Refused were not, because the
	// queue was full.
	Entries, Commands, Refused uint64
	// Queued is the number of commands waiting right now, of QueueCap.
	Queued, QueueCap int
}

// Stats returns the counters.
func (r *Replica) Stats() Stats {
	p := r.proposer
	return Stats{
		Entries: p.entries.Load(), Commands: p.commands.Load(), Refused: p.refused.Load(),
		Queued: p.batcher.Queued(), QueueCap: queueCommands,
	}
}

// WatchLeader calls f whenever the leader that this replica knows changes. f
// must not block. The returned function ends that.
func (r *Replica) WatchLeader(f func()) (stop func()) {
	ch := make(chan raft.Observation, leaderSlots)
	o := raft.NewObserver(ch, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	})
	r.raft.RegisterObserver(o)
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-ch:
				f()
			case <-done:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		r.raft.DeregisterObserver(o)
		close(done)
		<-gone
	})
}
