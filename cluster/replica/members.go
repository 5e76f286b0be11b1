package replica

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// changeTimeout bounds how long a change of the membership waits for a place
// in Raft's queue; the change itself takes as long as a quorum does.
const changeTimeout = 5 * time.Second

// ErrMembershipChanged: another change came first. Look at the members again.
var ErrMembershipChanged = errors.New("the membership changed in between")

// Member is a server in the Raft configuration.
type Member struct {
	ID, Address string
	// Voter counts for quorums; other members only receive the log.
	Voter bool
}

// Members returns the latest configuration and the index of the entry that
// made it.
func (r *Replica) Members() ([]Member, uint64, error) {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, 0, fmt.Errorf("read configuration: %w", err)
	}
	servers := f.Configuration().Servers
	out := make([]Member, len(servers))
	for i, s := range servers {
		out[i] = Member{ID: string(s.ID), Address: string(s.Address), Voter: s.Suffrage == raft.Voter}
	}
	return out, f.Index(), nil
}

// IsMember says whether this server is in the configuration that it knows.
func (r *Replica) IsMember() bool {
	members, _, err := r.Members()
	if err != nil {
		return false
	}
	for _, m := range members {
		if m.ID == r.ID() {
			return true
		}
	}
	return false
}

func (r *Replica) voters() ([]Voter, error) {
	members, _, err := r.Members()
	if err != nil {
		return nil, err
	}
	out := make([]Voter, 0, len(members))
	for _, m := range members {
		if m.Voter {
			out = append(out, Voter{m.ID, m.Address})
		}
	}
	return out, nil
}

// AddNonvoter takes a server in that receives the log and has no vote. after is
// the index of the configuration that the caller looked at.
func (r *Replica) AddNonvoter(ctx context.Context, id, address string, after uint64) error {
	return r.change(ctx, "add server "+id, r.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(address), after, changeTimeout))
}

// AddVoter gives a server a vote, or a voter another address.
func (r *Replica) AddVoter(ctx context.Context, id, address string, after uint64) error {
	return r.change(ctx, "give a vote to server "+id, r.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(address), after, changeTimeout))
}

// RemoveMember takes a server out. A leader that removes itself steps down.
func (r *Replica) RemoveMember(ctx context.Context, id string, after uint64) error {
	return r.change(ctx, "remove server "+id, r.raft.RemoveServer(raft.ServerID(id), after, changeTimeout))
}

// change waits for a change to be committed. When ctx ends first the change may
// still be made; the members tell.
func (r *Replica) change(ctx context.Context, what string, f raft.IndexFuture) error {
	done := make(chan error, 1)
	r.wg.Go(func() { done <- f.Error() })
	select {
	case err := <-done:
		switch {
		case err == nil:
			return nil
		case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrLeadershipTransferInProgress),
			errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrRaftShutdown):
			return fmt.Errorf("%s: %w: %w", what, ErrNotLeader, err)
		}
		if _, index, cerr := r.Members(); cerr == nil && index > 0 && r.IsLeader() {
			return fmt.Errorf("%s: %w: %w", what, ErrMembershipChanged, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w: %w", what, ErrUnknownOutcome, ctx.Err())
	}
}

// Position is a place in the log.
type Position struct{ Term, Index uint64 }

// LastEntry is where this replica's log ends. It decides who can win an
// election.
func (r *Replica) LastEntry() (term, index uint64) {
	s := r.raft.Stats()
	term, index = number(s["last_log_term"]), number(s["last_log_index"])
	if snap := number(s["last_snapshot_index"]); index < snap {
		return number(s["last_snapshot_term"]), snap
	}
	return term, index
}

// Info is what this replica knows of its own Raft.
type Info struct {
	State       string
	Term        uint64
	FirstIndex  uint64
	LastIndex   uint64
	CommitIndex uint64
	// AppliedIndex is the newest entry that the state machine has applied;
	// Raft's own entries never reach it.
	AppliedIndex  uint64
	Snapshot      Position
	Configuration uint64
}

// Info reads the counters of Raft.
func (r *Replica) Info() Info {
	s := r.raft.Stats()
	first, err := r.tracked.FirstIndex()
	if err != nil {
		first = 0
	}
	return Info{
		State: lower(r.raft.State()), Term: r.raft.CurrentTerm(), FirstIndex: first, LastIndex: r.raft.LastIndex(),
		CommitIndex: r.raft.CommitIndex(), AppliedIndex: r.cfg.Machine.Root().Position().Index,
		Snapshot:      Position{number(s["last_snapshot_term"]), number(s["last_snapshot_index"])},
		Configuration: number(s["latest_configuration_index"]),
	}
}

func lower(s raft.RaftState) string {
	switch s {
	case raft.Leader:
		return "leader"
	case raft.Candidate:
		return "candidate"
	case raft.Follower:
		return "follower"
	default:
		return "shutdown"
	}
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
