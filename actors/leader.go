package actors

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"trivet/fsm"
	"trivet/internal/rt"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Config says for which term, on which state and by which limits a leader
// acts.
type Config struct {
	// Term is the term of leadership. Every command carries it and is refused
	// in another.
	Term uint64
	// Replicator must have applied everything that was committed before the
	// term began.
	Replicator Replicator
	// Logger gets what the leader does; nil discards it.
	Logger *slog.Logger
	// Limits are the durations; the zero value stands for DefaultLimits.
	Limits Limits
	// OnEscalate is called, once and on a goroutine of its own, when the
	// leader cannot go on; its tree has stopped by then. It may call Stop. Nil
	// logs only.
	OnEscalate func(error)
}

// Leader is the tree of one term.
type Leader struct {
	cfg Config
	sys *rt.System
	log *slog.Logger

	clock         *clock
	startRevision uint64
	sessions      *sessions
	attachments   *attachments
	counters      counters
	ready         chan struct{}
	readyOnce     sync.Once

	// owners are client sessions whose dial streams appeared or went, looks
	// are intercepts to be looked at; both wait for the projector.
	owners, looks idSet
	quarantine    quarantine
	directory     directory // the projector's

	// The groups are set when the root starts, before anything uses them.
	agents, clients, intercepts *rt.Group

	projector atomic.Pointer[rt.Ref[projectorMsg]]
	janitor   atomic.Pointer[rt.Ref[janitorMsg]]

	over   atomic.Bool   // a newer term was seen
	fenced chan struct{} // closed once over is set
	root   rt.Ref[rootMsg]
	ended  chan struct{} // closed when the tree has stopped
}

// StartLeader starts the tree of a term below sys and returns at once; the
// actors come up in the background, those of intercepts first, then the
// sessions of agents, then those of clients. ctx bounds the call only. The
// error says what is wrong with cfg, or wraps rt.ErrStopped if sys is shutting
// down. Whoever starts a leader stops it.
func StartLeader(ctx context.Context, sys *rt.System, cfg Config) (*Leader, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start leader of term %d: %w", cfg.Term, err)
	}
	if cfg.Limits == (Limits{}) {
		cfg.Limits = DefaultLimits()
	}
	if err := cfg.Limits.validate(); err != nil {
		return nil, fmt.Errorf("start leader of term %d: %w", cfg.Term, err)
	}
	if cfg.Term == 0 || cfg.Replicator == nil {
		return nil, errors.New("start leader: a term and a replicator are needed")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Leader{
		cfg:           cfg,
		sys:           sys,
		log:           cfg.Logger.With("term", cfg.Term),
		clock:         newClock(cfg.Limits.PauseGap, sys.Elapsed),
		startRevision: cfg.Replicator.Root().Revision(),
		ready:         make(chan struct{}),
		directory:     make(directory),
		fenced:        make(chan struct{}),
		ended:         make(chan struct{}),
	}
	l.sessions = newSessions(l.clock, &l.cfg.Limits)
	l.attachments = newAttachments(l.clock, attachmentEvents{
		Attached: func(id string) { l.sessions.event(id, sessionEvent{Kind: sessionAttached}) },
		Ended:    func(id string) { l.sessions.event(id, sessionEvent{Kind: sessionEnded}) },
		Owner:    l.owners.add,
		Exists: func(id string) bool {
			_, ok := cfg.Replicator.Root().Session(id)
			return ok
		},
	})
	var err error
	l.root, err = rt.Spawn(sys, rt.Spec[rootMsg]{
		Name:    fmt.Sprintf("leader@%d", cfg.Term),
		Kind:    "leader",
		Restart: rt.RestartPolicy{Intensity: rt.NoRestart, OnExceed: rt.Quarantine},
		New:     func() rt.Behavior[rootMsg] { return &root{l} },
	})
	if err != nil {
		return nil, fmt.Errorf("start leader of term %d: %w", cfg.Term, err)
	}
	sys.Go(l.watchEnd)
	return l, nil
}

// watchEnd stops the tree when its term is over, and tells the end of the tree
// to whoever waits for it, and to the server if nobody asked for it. It is the
// last goroutine of the leader.
func (l *Leader) watchEnd(ctx context.Context) {
	// ctx never ends: the tree does.
	_ = rt.Await(ctx, l.fenced, l.root.Done())
	l.root.RequestStop()
	_ = rt.Await(ctx, l.root.Done(), nil)
	close(l.ended)
	err := l.root.Err()
	if !errors.Is(err, rt.ErrFailed) {
		return
	}
	l.log.Error("leader cannot go on", "err", err)
	if l.cfg.OnEscalate != nil {
		l.cfg.OnEscalate(err)
	}
}

// Stop stops the tree, proposals on their way included, and waits for it. If
// ctx ends first, its error is returned and the tree goes on stopping. Stop
// may be called more than once.
func (l *Leader) Stop(ctx context.Context) error {
	l.root.RequestStop()
	select {
	case <-l.ended:
		return nil
	default:
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop leader of term %d: %w", l.cfg.Term, ctx.Err())
	}
}

// Ready is closed when every row that was there at the start has its actor; a
// session counts from when its entry is in the table. It stays open if the
// leader stops before that.
func (l *Leader) Ready() <-chan struct{} { return l.ready }

// becomeReady closes ready. The projector calls it.
func (l *Leader) becomeReady() {
	l.readyOnce.Do(func() {
		took := l.clock.running()
		l.counters.readyAfter.Store(int64(took))
		agents, clients := l.sessions.size()
		l.log.Info("leader is ready", "took", took, "agents", agents, "clients", clients,
			"intercepts", len(l.directory))
		close(l.ready)
	})
}

// Touch takes in a Remain. lastActivity is when the peer was last active by
// its own account, zero for now; it matters for clients only. False: the state
// has no such session. Touch takes one lock of a shard and never waits for an
// actor.
func (l *Leader) Touch(sessionID string, lastActivity time.Time) bool {
	var activity int64
	if !lastActivity.IsZero() {
		activity = lastActivity.UnixNano()
	}
	wall := l.sys.Now().UnixNano()
	ok := l.sessions.touch(sessionID, activity, wall) ||
		l.adopt(sessionID) && l.sessions.touch(sessionID, activity, wall)
	if ok {
		l.counters.touches.Add(1)
	} else {
		l.counters.unknownTouches.Add(1)
	}
	return ok
}

// adopt brings a session into the table that the projector has not come to
// yet, so that its Remain counts.
func (l *Leader) adopt(id string) bool {
	row, ok := l.cfg.Replicator.Root().Session(id)
	if !ok {
		return false
	}
	l.sessions.put(row, row.CreateRevision <= l.startRevision)
	// If the row was removed meanwhile, the projector may have been here
	// before us. If it is still there, the projector will come after us.
	if _, ok := l.cfg.Replicator.Root().Session(id); !ok {
		l.sessions.remove(id)
		return false
	}
	return true
}

// SetAttachments takes in which streams a server holds, this one's own
// included. boot is the server's incarnation: what an earlier one said is
// forgotten. full says that sessions which are not named have no stream there.
// Counts of a session replace those said before.
func (l *Leader) SetAttachments(server, boot string, full bool, atts []Attachment) {
	l.attachments.set(server, boot, full, atts)
	l.kickProjector()
}

// DropServer forgets the streams of a server that died or cannot be reached.
// No session loses time by it; intercepts whose owner was attached there get
// the grace that any owner gets.
func (l *Leader) DropServer(server string) {
	l.attachments.drop(server)
	l.kickProjector()
}

// kickProjector makes the projector look at owners and looks. If its mailbox
// is full it is about to do so anyway; if it has not started, it will.
func (l *Leader) kickProjector() {
	if ref := l.projector.Load(); ref != nil {
		_ = ref.Offer(kicked{})
	}
}

// propose stamps the commands with the term, proposes them and says how that
// ended. It waits, so it belongs into a worker.
func (l *Leader) propose(ctx context.Context, cmds []*commandv1.Command) outcome {
	if l.over.Load() {
		return outcomeUnknown
	}
	for _, c := range cmds {
		c.Version = fsm.CommandVersion
		c.ExpectedTerm = l.cfg.Term
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Limits.ProposeTimeout)
	defer cancel()
	results, err := l.cfg.Replicator.Propose(ctx, cmds...)
	if err != nil {
		l.counters.unknown.Add(1)
		l.log.Debug("outcome of a proposal is unknown", "commands", len(cmds), "err", err)
		return outcomeUnknown
	}
	for _, r := range results {
		switch {
		case r.Reason == fsm.ReasonStaleTerm:
			l.fence()
			return outcomeUnknown
		case r.Code != commandv1.Code_CODE_OK:
			l.counters.refused.Add(1)
			l.log.Debug("proposal refused", "reason", r.Reason, "message", r.Message)
			return outcomeRefused
		}
	}
	l.counters.applied.Add(1)
	return outcomeApplied
}

// confirm asks a quorum whether this server still leads.
func (l *Leader) confirm(ctx context.Context) bool {
	if l.over.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Limits.ProposeTimeout)
	defer cancel()
	if err := l.cfg.Replicator.ConfirmLeader(ctx); err != nil {
		l.counters.notConfirmed.Add(1)
		l.log.Debug("leadership is not confirmed", "err", err)
		return false
	}
	return true
}

// fence stops the tree because its term is over. The server knows or will know
// by itself; it still has to call Stop.
func (l *Leader) fence() {
	if l.over.CompareAndSwap(false, true) {
		l.log.Warn("term is over; leader stops")
		close(l.fenced)
	}
}
