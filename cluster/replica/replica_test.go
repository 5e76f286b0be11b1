package replica

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestOneVoterWritesReadsAndRestarts(t *testing.T) {
	m := single(t, nil)
	if m.HasState() {
		t.Error("a new data directory is said to have state")
	}
	ctx := testContext(t)
	m.write(t, "k", 20)
	rev, err := m.ReadRevision(ctx)
	if err != nil || rev != 20 {
		t.Fatalf("read revision %d, %v; want 20", rev, err)
	}
	id, digest := m.ID(), m.machine.Root().Digest()
	events := m.stop(t)
	if len(events) == 0 || !events[0].Established || events[0].Term == 0 {
		t.Errorf("leadership events %v, want one that says it was established", events)
	}
	m.restart(t)
	m.lead(t)
	if !m.HasState() || m.ID() != id {
		t.Errorf("after a restart: has state %v, id %s; want the same server, %s", m.HasState(), m.ID(), id)
	}
	if err := m.WaitRevision(ctx, rev); err != nil {
		t.Fatal(err)
	}
	if got := m.machine.Root().Digest(); got != digest {
		t.Errorf("after a restart the digest is %x, want %x", got, digest)
	}
}

// TestReadsOnAQuietLeaderWriteNothing: a read that wrote would cost a disk
// write per read, and one that waited for the commit index would hang, because
// the newest entry is Raft's own.
func TestReadsOnAQuietLeaderWriteNothing(t *testing.T) {
	c := newTrio(t, nil)
	leader := c.leader(t)
	ctx := testContext(t)
	before := leader.raft.LastIndex()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if rev, err := leader.ReadRevision(ctx); err != nil || rev != 0 {
				t.Errorf("read revision %d, %v; want 0", rev, err)
			}
		})
	}
	wg.Wait()
	if after := leader.raft.LastIndex(); after != before {
		t.Errorf("the log grew from %d to %d", before, after)
	}
	leader.write(t, "k", 1)
	if rev, err := leader.ReadRevision(ctx); err != nil || rev != 1 {
		t.Errorf("after a write: revision %d, %v; want 1", rev, err)
	}
}

func TestFollowersSayThatTheyDoNotLead(t *testing.T) {
	c := newTrio(t, nil)
	f := c.follower(t)
	ctx := testContext(t)
	if _, err := f.Propose(ctx, []*commandv1.Command{put("k", nil)}); !errors.Is(err, ErrNotLeader) {
		t.Errorf("propose: %v, want ErrNotLeader", err)
	}
	if _, err := f.ReadRevision(ctx); !errors.Is(err, ErrNotLeader) {
		t.Errorf("read: %v, want ErrNotLeader", err)
	}
	if f.LeaderTerm() != 0 || f.IsLeader() {
		t.Error("a follower says that it leads")
	}
}

func TestConcurrentWritersShareEntries(t *testing.T) {
	m := single(t, func(c *Config) { c.NoSync = false })
	ctx := testContext(t)
	const writers, each = 64, 20
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if _, err := m.Propose(ctx, []*commandv1.Command{put("k", []byte("v"))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	st := m.Stats()
	if st.Commands != writers*each || st.Refused != 0 || st.Queued != 0 {
		t.Errorf("stats %+v, want %d commands, none refused, none queued", st, writers*each)
	}
	if st.Entries > st.Commands/2 {
		t.Errorf("%d commands took %d entries: they hardly share any", st.Commands, st.Entries)
	}
	if rev := m.machine.Root().Revision(); rev != writers*each {
		t.Errorf("the state is at revision %d, want %d", rev, writers*each)
	}
}

func TestSnapshotAndRestart(t *testing.T) {
	m := single(t, func(c *Config) { c.TrailingLogs, c.SnapshotThreshold = 4, 16 })
	m.write(t, "k", 50)
	if err := m.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if err := m.Snapshot(); err != nil {
		t.Errorf("a second snapshot, with nothing new: %v", err)
	}
	m.write(t, "after", 3)
	digest := m.machine.Root().Digest()
	m.stop(t)
	if m.snapshots(t) == 0 {
		t.Fatal("there is no snapshot")
	}
	m.restart(t)
	m.lead(t)
	if err := m.WaitRevision(testContext(t), 53); err != nil {
		t.Fatal(err)
	}
	if got := m.machine.Root().Digest(); got != digest {
		t.Errorf("after a restart from a snapshot the digest is %x, want %x", got, digest)
	}
	m.write(t, "again", 1)
	if rev, err := m.ReadRevision(testContext(t)); err != nil || rev != 54 {
		t.Errorf("read revision %d, %v; want 54", rev, err)
	}
}

func TestFollowerThatWasDownGetsASnapshot(t *testing.T) {
	c := newTrio(t, func(c *Config) { c.TrailingLogs, c.SnapshotThreshold = 8, 16 })
	f := c.follower(t)
	f.stop(t)
	leader := c.leader(t)
	leader.write(t, "k", 100)
	if err := leader.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if n := f.snapshots(t); n != 0 {
		t.Fatalf("the follower has %d snapshots before it is back", n)
	}
	f.restart(t)
	c.sameState(t)
	if f.snapshots(t) == 0 {
		t.Error("the follower caught up without a snapshot: the test proves nothing")
	}
	// It takes part like any other.
	leader = c.leader(t)
	if err := leader.TransferLeadership(f.ID(), f.cfg.Advertise); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the restored follower leads", func() bool { return c.leader(t) == f })
	f.write(t, "new", 5)
	c.sameState(t)
}

func TestLeadershipEventsAlternateThroughTransfers(t *testing.T) {
	c := newTrio(t, nil)
	for range 6 {
		leader := c.leader(t)
		if err := leader.TransferLeadership("", ""); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another leader", func() bool { return c.leader(t) != leader })
	}
	c.sameState(t)
	seen := make(map[uint64]int)
	for i, m := range c {
		events := m.stop(t)
		var term uint64
		for _, e := range events {
			switch {
			case e.Established && (term != 0 || e.Term == 0):
				t.Errorf("replica %d: term %d begins while %d has not ended: %v", i, e.Term, term, events)
			case !e.Established && e.Term != term:
				t.Errorf("replica %d: term %d ends while %d is on: %v", i, e.Term, term, events)
			}
			if term = 0; e.Established {
				term = e.Term
				seen[term]++
			}
		}
	}
	for term, n := range seen {
		if n > 1 {
			t.Errorf("term %d was established %d times", term, n)
		}
	}
	if len(seen) < 7 {
		t.Errorf("terms %v were established, want at least 7 of them", seen)
	}
}

func TestEndOfALeadershipThatNobodyHeardOf(t *testing.T) {
	var q []Leadership
	q = append(q, Leadership{Established: true, Term: 3})
	if q = end(q, 3); len(q) != 0 {
		t.Errorf("queue %v, want nothing left of term 3", q)
	}
	if q = end(q, 5); len(q) != 1 || q[0] != (Leadership{Term: 5}) {
		t.Errorf("queue %v, want the end of term 5", q)
	}
	q = append(q, Leadership{Established: true, Term: 7})
	if q = end(q, 7); len(q) != 1 || q[0].Term != 5 {
		t.Errorf("queue %v, want the end of term 5 only", q)
	}
}

// TestLeaderWithoutQuorumDoesNotAnswer: neither a write nor a read may succeed,
// and the write may still come true.
func TestLeaderWithoutQuorumDoesNotAnswer(t *testing.T) {
	c := newTrio(t, nil)
	leader := c.leader(t)
	leader.write(t, "k", 1)
	for _, m := range c {
		if m != leader {
			m.stop(t)
		}
	}
	ctx := testContext(t)
	_, werr := leader.Propose(ctx, []*commandv1.Command{put("lost", nil)})
	if !errors.Is(werr, ErrUnknownOutcome) && !errors.Is(werr, ErrNotLeader) {
		t.Errorf("write: %v, want ErrUnknownOutcome", werr)
	}
	if _, err := leader.ReadRevision(ctx); !errors.Is(err, ErrNotLeader) {
		t.Errorf("read: %v, want ErrNotLeader", err)
	}
	eventually(t, "it says that it does not lead", func() bool { return leader.LeaderTerm() == 0 })
	if since := time.Since(leader.LastContact()); since < 0 || since > testLimit {
		t.Errorf("last contact was %s ago", since)
	}
}

func TestElectNowAfterTheLeaderIsGone(t *testing.T) {
	c := newTrio(t, func(c *Config) { c.Multiplier = 4 })
	old := c.leader(t)
	old.write(t, "k", 5)
	changed := make(chan struct{}, 64)
	next := c.follower(t)
	// One that misses the last write is not elected by the other.
	c.sameState(t)
	defer next.WatchLeader(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	old.stop(t)
	begin := time.Now()
	if err := next.ElectNow(); err != nil {
		t.Fatal(err)
	}
	next.lead(t)
	// The timeout is 2 s at least.
	if took := time.Since(begin); took > 1500*time.Millisecond {
		t.Errorf("the election took %s: it was the timeout's", took)
	}
	select {
	case <-changed:
	default:
		t.Error("the change of leader was not observed")
	}
	next.write(t, "after", 1)
	c.sameState(t)
}

// TestReluctantReplicaDoesNotWinItsLeadBack: nor does anybody lack a leader for
// that.
func TestReluctantReplicaDoesNotWinItsLeadBack(t *testing.T) {
	// Long timeouts, because a busy machine stops any of them now and then.
	c := newTrio(t, func(c *Config) { c.Multiplier = 2 })
	for round := range 3 {
		old := c.leader(t)
		old.write(t, "k", 2)
		c.sameState(t)
		var others []*member
		for _, m := range c {
			if m != old {
				others = append(others, m)
				m.stop(t)
			}
		}
		eventually(t, "it knows that it does not lead any more", func() bool {
			id, _ := old.Leader()
			return id == "" && !old.IsLeader()
		})
		if err := old.SetReluctant(true); err != nil {
			t.Fatal(err)
		}
		for _, m := range others {
			m.restart(t)
		}
		if next := c.leader(t); next == old {
			t.Errorf("round %d: the reluctant one won", round)
		}
		if err := old.SetReluctant(false); err != nil {
			t.Fatal(err)
		}
		c.sameState(t)
	}
	// When all are, somebody has to.
	for _, m := range c {
		if err := m.SetReluctant(true); err != nil {
			t.Fatal(err)
		}
	}
	c.leader(t).stop(t)
	c.leader(t).write(t, "k", 1)
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	c := newTrio(t, nil)
	leader := c.leader(t)
	ctx := testContext(t)
	var wg sync.WaitGroup
	started := make(chan struct{}, 64)
	for range 64 {
		wg.Go(func() {
			for {
				_, err := leader.Propose(ctx, []*commandv1.Command{put("k", nil)})
				select {
				case started <- struct{}{}:
				default:
				}
				switch {
				case err == nil:
				case errors.Is(err, ErrUnknownOutcome), errors.Is(err, ErrClosed), errors.Is(err, ErrNotLeader):
					return
				default:
					t.Errorf("a proposal ended with %v", err)
					return
				}
			}
		})
		wg.Go(func() {
			for {
				_, err := leader.ReadRevision(ctx)
				switch {
				case err == nil:
				case errors.Is(err, ErrClosed), errors.Is(err, ErrNotLeader):
					return
				default:
					t.Errorf("a read ended with %v", err)
					return
				}
			}
		})
	}
	<-started
	leader.stop(t)
	wg.Wait()
	if ctx.Err() != nil {
		t.Error("something ended only with the test's own limit")
	}
	c.sameState(t)
}

func TestUndecodableEntryIsFatal(t *testing.T) {
	m := single(t, nil)
	m.write(t, "k", 1)
	m.raft.Apply([]byte{0xff, 0xff}, time.Second)
	select {
	case err := <-m.Fatal():
		if !strings.Contains(err.Error(), "decode log entry") {
			t.Errorf("fatal error %v does not say what happened", err)
		}
	case <-testContext(t).Done():
		t.Fatal("nobody was told")
	}
	ctx, cancel := context.WithCancel(testContext(t))
	out := make(chan error, 1)
	go func() {
		_, err := m.Propose(ctx, []*commandv1.Command{put("after", nil)})
		out <- err
	}()
	m.stop(t)
	if err := <-out; err == nil {
		t.Error("a write after the bad entry was acknowledged")
	}
	cancel()
	if rev := m.machine.Root().Revision(); rev != 1 {
		t.Errorf("the state went on to revision %d", rev)
	}
}

func TestWipedDataDirectoryIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		wipe string
		want string
	}{
		"the Raft state is gone": {raftDir, "Raft state is missing"},
		"the id is gone":         {idFile, "server-id"},
	} {
		t.Run(name, func(t *testing.T) {
			m := single(t, nil)
			m.write(t, "k", 1)
			m.stop(t)
			if err := os.RemoveAll(filepath.Join(m.cfg.DataDir, c.wipe)); err != nil {
				t.Fatal(err)
			}
			_, err := Open(m.cfg)
			if !errors.Is(err, ErrForeignData) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want ErrForeignData that says %q", err, c.want)
			}
			// Nothing was made up for it either.
			if _, err := Open(m.cfg); !errors.Is(err, ErrForeignData) {
				t.Errorf("the second time: %v, want ErrForeignData", err)
			}
		})
	}
}

func TestForeignIDIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, idFile), []byte("not a uuid\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Config{DataDir: dir, Advertise: "127.0.0.1:1", Machine: fsm.New(fsm.Options{}), Stream: stream{}})
	if !errors.Is(err, ErrForeignData) {
		t.Errorf("got %v, want ErrForeignData", err)
	}
}

func TestSecondProcessOnTheSameDirectoryIsRefused(t *testing.T) {
	m := single(t, nil)
	cfg := m.cfg
	cfg.Machine = fsm.New(fsm.Options{})
	_, err := Open(cfg)
	if err == nil || !strings.Contains(err.Error(), "another process has it open") {
		t.Fatalf("got %v, want an error that says who has it", err)
	}
	m.write(t, "k", 1)
}

func TestBootstrapTwiceIsNoError(t *testing.T) {
	m := single(t, nil)
	before, err := m.Servers()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Bootstrap([]raft.Server{{Suffrage: raft.Voter, ID: "other", Address: "127.0.0.1:1"}}); err != nil {
		t.Errorf("bootstrap where state exists: %v", err)
	}
	after, err := m.Servers()
	if err != nil {
		t.Fatal(err)
	}
	if len(after) != 1 || after[0] != before[0] {
		t.Errorf("the configuration went from %v to %v", before, after)
	}
}

func TestConfigurationErrorsAreToldAtOnce(t *testing.T) {
	_, err := Open(Config{Multiplier: 11})
	for _, want := range []string{"data directory", "advertise", "multiplier 11", "state machine", "stream layer"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %q", err, want)
		}
	}
}
