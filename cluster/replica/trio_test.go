package replica

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// stream is Raft's stream layer over plain TCP.
type stream struct{ net.Listener }

func (stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return net.DialTimeout("tcp", string(address), timeout)
}

// member is a replica with what is needed to start it again.
type member struct {
	*Replica
	machine *fsm.Machine
	cfg     Config
	down    bool
	// events collects what Leadership delivers until the replica is closed.
	events chan []Leadership
}

// running finds the replicas of all tests by their ids.
var running sync.Map

// askTerm asks a running replica as another server would.
func askTerm(_ context.Context, v Voter) (uint64, error) {
	r, ok := running.Load(v.ID)
	if !ok {
		return 0, errors.New("it does not run")
	}
	return r.(*Replica).NewestTerm(), nil
}

// open starts a replica at address (":0" style for a new one); it is closed
// with the test.
func open(t testing.TB, dir, address string, tune func(*Config)) *member {
	t.Helper()
	var ln net.Listener
	var err error
	eventually(t, "the port is free", func() bool {
		ln, err = net.Listen("tcp", address)
		return err == nil
	})
	m := &member{machine: fsm.New(fsm.Options{})}
	m.cfg = Config{
		DataDir: dir, Advertise: ln.Addr().String(), Machine: m.machine, Stream: stream{ln}, NoSync: true, AskTerm: askTerm,
		Logger: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	if tune != nil {
		tune(&m.cfg)
	}
	m.Replica, err = Open(m.cfg)
	if err != nil {
		ln.Close()
		t.Fatal(err)
	}
	running.Store(m.ID(), m.Replica)
	m.collect()
	t.Cleanup(func() { m.stop(t) })
	return m
}

func (m *member) collect() {
	m.events = make(chan []Leadership, 1)
	events, in := m.events, m.Leadership()
	go func() {
		var all []Leadership
		for l := range in {
			all = append(all, l)
		}
		events <- all
	}()
}

// stop closes the replica and returns what it told of its leadership.
func (m *member) stop(t testing.TB) []Leadership {
	t.Helper()
	if m.down {
		return nil
	}
	m.down = true
	running.Delete(m.ID())
	if err := m.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	return <-m.events
}

// restart starts a stopped replica on its old data and address.
func (m *member) restart(t testing.TB) {
	t.Helper()
	next := open(t, m.cfg.DataDir, m.cfg.Advertise, func(c *Config) {
		c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = m.cfg.SnapshotThreshold, m.cfg.SnapshotInterval, m.cfg.TrailingLogs
	})
	*m = *next
	// The cleanup of next stops the shared replica; this one's is a no-op then.
	next.down = true
	t.Cleanup(func() { m.stop(t) })
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// single starts one voter and waits until it leads.
func single(t testing.TB, tune func(*Config)) *member {
	t.Helper()
	m := open(t, t.TempDir(), "127.0.0.1:0", tune)
	bootstrap(t, m)
	m.lead(t)
	return m
}

func bootstrap(t testing.TB, members ...*member) {
	t.Helper()
	var servers []raft.Server
	for _, m := range members {
		servers = append(servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID()), Address: raft.ServerAddress(m.cfg.Advertise)})
	}
	for _, m := range members {
		if err := m.Bootstrap(servers); err != nil {
			t.Fatal(err)
		}
	}
}

func (m *member) lead(t testing.TB) {
	t.Helper()
	eventually(t, "the replica leads", func() bool { return m.LeaderTerm() != 0 })
}

type trio []*member

func newTrio(t testing.TB, tune func(*Config)) trio {
	t.Helper()
	var c trio
	for range 3 {
		c = append(c, open(t, t.TempDir(), "127.0.0.1:0", tune))
	}
	bootstrap(t, c...)
	c.leader(t)
	return c
}

// leader waits for one that has passed its barrier and that all others know.
func (c trio) leader(t testing.TB) *member {
	t.Helper()
	var leader *member
	eventually(t, "a leader that all know", func() bool {
		leader = nil
		for _, m := range c {
			if !m.down && m.LeaderTerm() != 0 && m.IsLeader() {
				leader = m
			}
		}
		for _, m := range c {
			if leader == nil {
				return false
			}
			if id, _ := m.Leader(); !m.down && id != leader.ID() {
				return false
			}
		}
		return true
	})
	return leader
}

func (c trio) follower(t testing.TB) *member {
	leader := c.leader(t)
	for _, m := range c {
		if m != leader && !m.down {
			return m
		}
	}
	t.Fatal("no follower runs")
	return nil
}

// sameState waits until all that run are at the leader's revision and compares
// their digests.
func (c trio) sameState(t testing.TB) {
	t.Helper()
	ctx := testContext(t)
	leader := c.leader(t)
	rev, err := leader.ReadRevision(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := leader.machine.Root()
	for _, m := range c {
		if m.down {
			continue
		}
		if err := m.WaitRevision(ctx, rev); err != nil {
			t.Fatalf("a replica does not get to revision %d: %v", rev, err)
		}
		if got := m.machine.Root(); got.Revision() != want.Revision() || got.Digest() != want.Digest() {
			t.Errorf("a replica is at revision %d with digest %x, the leader at %d with %x", got.Revision(), got.Digest(), want.Revision(), want.Digest())
		}
	}
}

// write proposes n commands one by one, so that each has an entry of its own.
func (m *member) write(t testing.TB, prefix string, n int) {
	t.Helper()
	ctx := testContext(t)
	for i := range n {
		res, err := m.Propose(ctx, []*commandv1.Command{put(fmt.Sprintf("%s-%d", prefix, i), []byte("v"))})
		if err != nil || res[0].GetCode() != commandv1.Code_CODE_OK {
			t.Fatalf("write %d: %v, %v", i, res, err)
		}
	}
}

func (m *member) snapshots(t testing.TB) int {
	t.Helper()
	n := 0
	err := filepath.WalkDir(filepath.Join(m.cfg.DataDir, raftDir, "snapshots"), func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, "state.bin") {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
