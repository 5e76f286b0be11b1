package integrity

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"trivet/fsm"
)

const (
	// every is how often the digests are compared.
	every = 3 * time.Second
	// askTimeout bounds the question to one peer.
	askTimeout = 2 * time.Second
	// askAgain is the pause before a peer that is behind is asked again.
	askAgain = 100 * time.Millisecond
	// healTimeout bounds the taking over of a peer's state; nothing is applied
	// meanwhile.
	healTimeout = time.Minute
)

// History is a state machine's memory of its digests.
type History interface {
	// Digests lists those at or above a revision, in order.
	Digests(from uint64) []fsm.DigestAt
	// Root is the present state.
	Root() *fsm.Root
}

// Answer is what a peer says of its digests.
type Answer struct {
	ID      string
	Schema  uint32
	Digests []fsm.DigestAt
}

// Peers asks the other voters.
type Peers interface {
	// Voters lists the ids of all voters, this server's included.
	Voters() []string
	// Digests asks a voter for its digests at or above a revision.
	Digests(ctx context.Context, id string, from uint64) (Answer, error)
}

// Config of a Monitor.
type Config struct {
	// Self is this server's id.
	Self    string
	History History
	Peers   Peers
	// Leads says whether this server leads: it hands leadership over before it
	// takes another state.
	Leads func() bool
	// StepDown hands leadership over.
	StepDown func() error
	// Heal replaces this server's state by that of a peer that has the right
	// one.
	Heal   func(ctx context.Context, from string) error
	Logger *slog.Logger
	// Every is how often the digests are compared; 0 means 3 s.
	Every time.Duration
}

// Status is what the last comparisons found.
type Status struct {
	// Diverged: this server's state differs from that of a majority; it must not
	// serve.
	Diverged bool
	// Disputed: digests differ and no majority says whose is right.
	Disputed bool
	// Detail says which and where; empty when all is well.
	Detail string
	// Compared is the newest revision at which a majority agreed.
	Compared uint64
}

// Monitor compares and heals. Make it with New, run it with Run.
type Monitor struct {
	cfg      Config
	diverged atomic.Bool

	mu     sync.Mutex
	status Status // guarded by mu

	mismatches, healed atomic.Uint64
}

// New returns a monitor that found nothing yet.
func New(cfg Config) *Monitor {
	if cfg.Every == 0 {
		cfg.Every = every
	}
	return &Monitor{cfg: cfg}
}

// Diverged says whether this server must not serve. It is cheap.
func (m *Monitor) Diverged() bool { return m.diverged.Load() }

// Status returns what the last comparisons found.
func (m *Monitor) Status() Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}

// Counts returns how many comparisons found a difference and how often this
// server took another's state over.
func (m *Monitor) Counts() (mismatches, healed uint64) {
	return m.mismatches.Load(), m.healed.Load()
}

// Run compares until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	tick := time.NewTicker(m.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		m.Compare(ctx)
	}
}

// Compare makes one comparison, and heals this server if it has to be.
func (m *Monitor) Compare(ctx context.Context) {
	digests := m.cfg.History.Digests(m.cfg.History.Root().Revision())
	if len(digests) == 0 {
		return
	}
	v := m.vote(ctx, digests[0])
	m.judge(v)
	if m.Diverged() {
		m.heal(ctx, v)
	}
}

// votes are the voters by the digest that they have at one revision.
type votes struct {
	at     fsm.DigestAt
	voters int
	by     map[[32]byte][]string
}

// vote asks all peers for their digest at the revision of own. Those that are
// behind, or passed it too long ago, or have another schema, do not vote.
func (m *Monitor) vote(ctx context.Context, own fsm.DigestAt) votes {
	ids := m.cfg.Peers.Voters()
	v := votes{at: own, voters: len(ids), by: map[[32]byte][]string{own.Digest: {m.cfg.Self}}}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, id := range ids {
		if id == m.cfg.Self {
			continue
		}
		wg.Go(func() {
			a, err := m.cfg.Peers.Digests(ctx, id, own.Revision)
			if err == nil && len(a.Digests) == 0 {
				a, err = m.later(ctx, id, own.Revision)
			}
			if err != nil || a.ID != id || a.Schema != fsm.SchemaVersion || len(a.Digests) == 0 || a.Digests[0].Revision != own.Revision {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			v.by[a.Digests[0].Digest] = append(v.by[a.Digests[0].Digest], id)
		})
	}
	wg.Wait()
	return v
}

// later asks a peer again that was behind; under load all are, by milliseconds.
func (m *Monitor) later(ctx context.Context, id string, revision uint64) (Answer, error) {
	pause := time.NewTimer(askAgain)
	defer pause.Stop()
	select {
	case <-pause.C:
		return m.cfg.Peers.Digests(ctx, id, revision)
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

// majority returns the digest that a majority of the voters has.
func (v votes) majority() (digest [32]byte, who []string, ok bool) {
	for d, ids := range v.by {
		if len(ids) >= v.voters/2+1 {
			return d, ids, true
		}
	}
	return [32]byte{}, nil, false
}

func (m *Monitor) judge(v votes) {
	right, _, known := v.majority()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(v.by) > 1 {
		m.mismatches.Add(1)
		m.status.Detail = fmt.Sprintf("at revision %d there are %d different digests among %d voters", v.at.Revision, len(v.by), v.voters)
		m.cfg.Logger.Error("the states of the servers differ", "revision", v.at.Revision, "digests", len(v.by), "majority", known, "own", known && right == v.at.Digest)
	}
	switch {
	case known && right != v.at.Digest:
		m.diverged.Store(true)
		m.status.Diverged, m.status.Disputed = true, false
	case known:
		m.diverged.Store(false)
		m.status = Status{Compared: v.at.Revision}
		if len(v.by) > 1 {
			m.status.Detail = "another server's state differs from that of the majority; it heals itself"
		}
	case len(v.by) > 1:
		// A server that has diverged stays so until a majority says otherwise.
		m.status.Disputed = true
	}
}

// heal takes the state of a server of the majority over.
func (m *Monitor) heal(ctx context.Context, v votes) {
	_, who, ok := v.majority()
	if !ok {
		return
	}
	if m.cfg.Leads() {
		if err := m.cfg.StepDown(); err != nil {
			m.cfg.Logger.Error("this server's state is wrong and it could not hand leadership over", "err", err)
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, healTimeout)
	defer cancel()
	for _, id := range who {
		if id == m.cfg.Self {
			continue
		}
		if err := m.cfg.Heal(ctx, id); err != nil {
			m.cfg.Logger.Error("the state of another server could not be taken over", "from", id, "err", err)
			continue
		}
		m.healed.Add(1)
		m.cfg.Logger.Warn("took the state of another server over", "from", id)
		return
	}
}
