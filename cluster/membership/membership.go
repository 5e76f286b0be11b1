package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/replica"
	"trivet/internal/errs"
)

const (
	// MaxVoters bounds the voters of a cluster.
	MaxVoters = 5
	// catchUpTimeout bounds how long a new server may take to have the state.
	catchUpTimeout = 5 * time.Minute
	// catchUpPoll is how often it is asked.
	catchUpPoll = 100 * time.Millisecond
	// closeEnough is how soon a server must have reached the leader's revision to be
	// one that can follow.
	closeEnough = time.Second
	// aliveTimeout bounds the question whether a server runs.
	aliveTimeout = time.Second
	// promoteEvery is how often servers without a vote are looked at: those whose
	// change was interrupted.
	promoteEvery = 2 * time.Second
)

// Raft is what this package needs of the replica.
type Raft interface {
	ID() string
	// LeaderTerm is 0 unless this server leads and is ready to.
	LeaderTerm() uint64
	Members() ([]replica.Member, uint64, error)
	AddNonvoter(ctx context.Context, id, address string, after uint64) error
	AddVoter(ctx context.Context, id, address string, after uint64) error
	RemoveMember(ctx context.Context, id string, after uint64) error
	TransferLeadership(id, address string) error
}

// Servers asks other servers.
type Servers interface {
	// Name is a server's name, or its id when it is not known.
	Name(id string) string
	// Alive fails when the server with that id does not answer at that address.
	Alive(ctx context.Context, id, address string) error
	// Reached says whether a server's state is at or past a revision.
	Reached(ctx context.Context, id, address string, revision uint64) (bool, error)
	// Revision is the leader's own.
	Revision() uint64
	// CommandVersion is that of the newest command in the state.
	CommandVersion() uint32
	// Removed is told of a server that left.
	Removed(ctx context.Context, id string)
}

// Server is one that wants to join.
type Server struct {
	ID, Name, Address string
	// CommandVersion is the newest that it knows.
	CommandVersion uint32
}

// Manager makes the changes. Make it with New.
type Manager struct {
	raft    Raft
	servers Servers
	log     *slog.Logger
	// busy holds one token while a change is made.
	busy    chan struct{}
	changes atomic.Uint64
	wg      sync.WaitGroup
}

// New returns a manager that makes no change by itself.
func New(r Raft, s Servers, log *slog.Logger) *Manager {
	return &Manager{raft: r, servers: s, log: log, busy: make(chan struct{}, 1)}
}

// Changes is how many changes this server has made to the configuration.
func (m *Manager) Changes() uint64 { return m.changes.Load() }

// begin waits for the change before; the caller ends its own with done.
func (m *Manager) begin(ctx context.Context) error {
	select {
	case m.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return errs.New(codes.Aborted, "MEMBERSHIP_BUSY", "another change of the membership is under way: %w", ctx.Err()).
			WithHint("wait until it is done: trivet operator raft list-peers")
	}
}

func (m *Manager) done() { <-m.busy }

// Join takes a server in and returns when it has a vote. replaces is the id of
// a member that it takes the place of, empty for none. Repeating it is safe.
func (m *Manager) Join(ctx context.Context, s Server, replaces string) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.done()
	members, _, err := m.look()
	if err != nil {
		return err
	}
	if err := m.admissible(ctx, members, s, replaces); err != nil {
		return err
	}
	if old := find(members, replaces); old != nil && old.Address == s.Address {
		// The configuration has room for one server per address.
		if err := m.remove(ctx, replaces, false); err != nil {
			return err
		}
	}
	if find(members, s.ID) == nil {
		if err := m.add(ctx, s); err != nil {
			return err
		}
	}
	if err := m.catchUp(ctx, s.ID, s.Address); err != nil {
		return err
	}
	if members, _, err = m.look(); err != nil {
		return err
	}
	if find(members, replaces) != nil {
		if err := m.remove(ctx, replaces, false); err != nil {
			return err
		}
	}
	return m.promote(ctx, s.ID)
}

// look returns the members if this server leads.
func (m *Manager) look() ([]replica.Member, uint64, error) {
	if m.raft.LeaderTerm() == 0 {
		return nil, 0, replica.ErrNotLeader
	}
	return m.raft.Members()
}

func find(members []replica.Member, id string) *replica.Member {
	for i := range members {
		if id != "" && members[i].ID == id {
			return &members[i]
		}
	}
	return nil
}

// admissible refuses what must not join.
func (m *Manager) admissible(ctx context.Context, members []replica.Member, s Server, replaces string) error {
	if known := m.servers.CommandVersion(); s.CommandVersion < known {
		return errs.New(codes.FailedPrecondition, "VERSION_TOO_OLD", "server %s knows commands up to version %d, the state needs %d", s.Name, s.CommandVersion, known).
			WithHint("install the version of the other servers on it")
	}
	voters := 0
	for _, x := range members {
		if x.Voter && x.ID != replaces && x.ID != s.ID {
			voters++
		}
		if x.ID == s.ID || x.ID == replaces {
			continue
		}
		if x.Address == s.Address || m.servers.Name(x.ID) == s.Name {
			return errs.New(codes.AlreadyExists, "SERVER_EXISTS", "the cluster has a server %s at %s already, with id %s", m.servers.Name(x.ID), x.Address, x.ID).
				WithHint("if that server lost its data or is gone for good: trivet operator raft add-peer %s --replaces %s", s.Address, x.ID).
				WithMeta("id", x.ID)
		}
	}
	if voters >= MaxVoters {
		return errs.New(codes.FailedPrecondition, "TOO_MANY_SERVERS", "the cluster has %d servers", voters).
			WithHint("remove one first: trivet operator raft remove-peer")
	}
	old := find(members, replaces)
	if old == nil {
		return nil
	}
	if replaces == s.ID {
		return errs.New(codes.InvalidArgument, "SAME_SERVER", "server %s cannot replace itself", s.Name)
	}
	actx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	if err := m.servers.Alive(actx, old.ID, old.Address); err == nil {
		return errs.New(codes.FailedPrecondition, "SERVER_ALIVE", "server %s, which is to be replaced, is running", m.servers.Name(old.ID)).
			WithHint("stop it first, or add the new server without --replaces and remove the old one afterwards")
	}
	return nil
}

func (m *Manager) add(ctx context.Context, s Server) error {
	_, index, err := m.look()
	if err != nil {
		return err
	}
	if err := m.raft.AddNonvoter(ctx, s.ID, s.Address, index); err != nil {
		return err
	}
	m.changes.Add(1)
	m.log.Info("a server joins and catches up", "server", s.Name, "id", s.ID, "address", s.Address)
	return nil
}

// catchUp waits until the server follows closely.
func (m *Manager) catchUp(ctx context.Context, id, address string) error {
	ctx, cancel := context.WithTimeout(ctx, catchUpTimeout)
	defer cancel()
	tick := time.NewTicker(catchUpPoll)
	defer tick.Stop()
	target, asked := m.servers.Revision(), time.Now()
	var last error
	for {
		if m.raft.LeaderTerm() == 0 {
			return replica.ErrNotLeader
		}
		ok, err := m.servers.Reached(ctx, id, address, target)
		switch {
		case err != nil:
			last = err
		case ok && time.Since(asked) <= closeEnough:
			return nil
		case ok:
			// It has what there was when the question began, a while ago.
			target, asked = m.servers.Revision(), time.Now()
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errs.New(codes.DeadlineExceeded, "NOT_CAUGHT_UP", "server %s did not catch up: %w", id, errors.Join(last, ctx.Err())).
				WithHint("it stays in the cluster without a vote and gets one when it has caught up; look at its log")
		}
	}
}

// promote gives a vote to a member that has none.
func (m *Manager) promote(ctx context.Context, id string) error {
	members, index, err := m.look()
	if err != nil {
		return err
	}
	s := find(members, id)
	switch {
	case s == nil:
		return errs.New(codes.Aborted, "SERVER_REMOVED", "server %s was removed while it joined", id)
	case s.Voter:
		return nil
	}
	s.Voter = true
	if err := m.quorum(ctx, members, ""); err != nil {
		return err
	}
	if err := m.raft.AddVoter(ctx, id, s.Address, index); err != nil {
		return err
	}
	m.changes.Add(1)
	m.log.Info("a server has a vote", "server", m.servers.Name(id), "id", id)
	return nil
}

// Remove takes a server out. The leader hands leadership over instead of
// removing itself and answers replica.ErrNotLeader: ask the next one. force
// removes also when those that remain have no reachable majority.
func (m *Manager) Remove(ctx context.Context, id string, force bool) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.done()
	return m.remove(ctx, id, force)
}

func (m *Manager) remove(ctx context.Context, id string, force bool) error {
	members, index, err := m.look()
	if err != nil {
		return err
	}
	s := find(members, id)
	if s == nil {
		return errs.New(codes.NotFound, "SERVER_NOT_FOUND", "server %q is not in the configuration", id).
			WithHint("`trivet operator raft list-peers` shows the servers")
	}
	if s.Voter && voters(members) == 1 {
		return errs.New(codes.FailedPrecondition, "LAST_SERVER", "server %s is the only one", m.servers.Name(id)).
			WithHint("a cluster needs a server; add another one first")
	}
	if !force && s.Voter {
		if err := m.quorum(ctx, members, id); err != nil {
			return err
		}
	}
	if id == m.raft.ID() {
		if err := m.raft.TransferLeadership("", ""); err != nil {
			return errs.New(codes.Aborted, "TRANSFER_FAILED", "the leader is to be removed but could not hand leadership over: %w", err).
				WithHint("try again")
		}
		return fmt.Errorf("leadership was handed over before the removal: %w", replica.ErrNotLeader)
	}
	if err := m.raft.RemoveMember(ctx, id, index); err != nil {
		return err
	}
	m.changes.Add(1)
	m.log.Info("a server was removed", "server", m.servers.Name(id), "id", id)
	m.servers.Removed(ctx, id)
	return nil
}

func voters(members []replica.Member) int {
	n := 0
	for _, x := range members {
		if x.Voter {
			n++
		}
	}
	return n
}

// quorum fails when the voters but for `without` have no majority that answers.
func (m *Manager) quorum(ctx context.Context, members []replica.Member, without string) error {
	ctx, cancel := context.WithTimeout(ctx, aliveTimeout)
	defer cancel()
	type answer struct {
		id  string
		err error
	}
	answers := make(chan answer, len(members))
	total, alive := 0, 0
	for _, x := range members {
		if !x.Voter || x.ID == without {
			continue
		}
		total++
		if x.ID == m.raft.ID() {
			answers <- answer{id: x.ID}
			continue
		}
		m.wg.Go(func() { answers <- answer{x.ID, m.servers.Alive(ctx, x.ID, x.Address)} })
	}
	var dead []string
	for range total {
		if a := <-answers; a.err == nil {
			alive++
		} else {
			dead = append(dead, m.servers.Name(a.id))
		}
	}
	if alive >= total/2+1 {
		return nil
	}
	return errs.New(codes.FailedPrecondition, "QUORUM_AT_RISK", "of the %d servers that would have a vote only %d answer (%s do not): no write would be possible",
		total, alive, strings.Join(dead, ", ")).
		WithHint("bring them back, or replace them first: trivet operator raft add-peer ADDRESS --replaces NAME")
}

// Run gives votes to members whose joining was interrupted, while this server
// leads, until ctx ends.
func (m *Manager) Run(ctx context.Context) {
	tick := time.NewTicker(promoteEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.wg.Wait()
			return
		}
		select {
		case m.busy <- struct{}{}:
			m.promoteAll(ctx)
			m.done()
		default:
		}
	}
}

func (m *Manager) promoteAll(ctx context.Context) {
	members, _, err := m.look()
	if err != nil {
		return
	}
	for _, x := range members {
		if x.Voter {
			continue
		}
		actx, cancel := context.WithTimeout(ctx, promoteEvery)
		ok, err := m.servers.Reached(actx, x.ID, x.Address, m.servers.Revision())
		if err == nil && ok {
			err = m.promote(actx, x.ID)
		}
		cancel()
		if err != nil {
			m.log.Debug("a server has no vote yet", "id", x.ID, "err", err)
		}
	}
}
