package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

// holdWithoutLeader is how long a call waits for a leader before it is told
// that there is none.
const holdWithoutLeader = 5 * time.Second

// retryPause is the shortest wait between two attempts while nothing has
// changed; a change of leader ends it at once.
const retryPause = 10 * time.Millisecond

// Replica is what the engine needs of the replica.
type Replica interface {
	ID() string
	IsLeader() bool
	Leader() (id, address string)
	Term() uint64
	Propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error)
	ReadRevision(ctx context.Context) (uint64, error)
	WaitRevision(ctx context.Context, revision uint64) error
}

// Peers gives clients of the other servers.
type Peers interface {
	Client(address string) (peersvc.PeerClient, error)
}

// Toucher takes keepalives on the leader.
type Toucher interface {
	// Touch extends a session's life. It never blocks; false: unknown session.
	Touch(sessionID string, lastActivity time.Time) bool
}

// Config of an Engine.
type Config struct {
	Replica Replica
	Peers   Peers
	Machine *fsm.Machine
	// BootID distinguishes this process from its predecessors.
	BootID string
	Logger *slog.Logger
}

// Engine writes and reads on behalf of handlers. Make it with New, end it with
// Close.
type Engine struct {
	cfg    Config
	writer *writer
	reads  *readRounds
	touch  *touchBatcher

	ctx    context.Context
	cancel context.CancelFunc

	mu      sync.Mutex
	changed chan struct{}
	toucher Toucher
}

// New starts the engine.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg, changed: make(chan struct{})}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.writer = newWriter("server/" + cfg.Replica.ID() + "/" + cfg.BootID)
	e.reads = newReadRounds(e)
	e.touch = newTouchBatcher(e)
	return e
}

// Close ends what runs in the background; calls that wait for it end with an
// error.
func (e *Engine) Close() {
	e.cancel()
	e.touch.close()
	e.reads.close()
}

// LeaderChanged wakes whatever waits for a leader. The server calls it on
// every change.
func (e *Engine) LeaderChanged() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *Engine) leaderChange() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

// SetToucher sets where keepalives go while this server leads; nil when it
// does not.
func (e *Engine) SetToucher(t Toucher) {
	e.mu.Lock()
	e.toucher = t
	e.mu.Unlock()
	e.LeaderChanged()
}

func (e *Engine) currentToucher() Toucher {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.toucher
}

// Root is the local state, however old.
func (e *Engine) Root() *fsm.Root { return e.cfg.Machine.Root() }

// Watch follows the local state after a revision.
func (e *Engine) Watch(after uint64) *fsm.Cursor { return e.cfg.Machine.Watch(after) }

// WatchFrom follows the local state from one that the caller has read on.
func (e *Engine) WatchFrom(root *fsm.Root) *fsm.Cursor { return e.cfg.Machine.WatchFrom(root) }

// Nothing was sent to anybody:
var (
	errNoneKnown   = errors.New("no server is known to lead")
	errUnreachable = errors.New("there is no way to the leader")
)

// errStopping is for calls that this server's shutdown ends.
func errStopping() error {
	return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").WithHint("reconnect to another server")
}

// noLeader is the answer when holding did not help.
func (e *Engine) noLeader(cause error) error {
	err := errs.New(codes.Unavailable, reasonNoLeader, "no leader could be reached within %s: %w", holdWithoutLeader, cause).
		WithHint("a majority of the servers must be up and connected; see `trivet status`").
		WithRetry(time.Second)
	if id, addr := e.cfg.Replica.Leader(); id != "" {
		err = err.WithMeta("leader", addr)
	}
	return err
}

// atLeader runs local on the leader itself or remote against it, again after
// every change of leader, until one succeeds, fails for good or the hold is
// over. retriable is told of every error and says which are worth another
// attempt.
func atLeader[T any](ctx context.Context, e *Engine, local func(context.Context) (T, error),
	remote func(context.Context, peersvc.PeerClient) (T, error), retriable func(error) bool,
) (T, error) {
	var zero T
	deadline := time.NewTimer(holdWithoutLeader)
	defer deadline.Stop()
	for {
		changed := e.leaderChange()
		began := time.Now()
		out, err := attempt(ctx, e, changed, local, remote)
		if err == nil {
			return out, nil
		}
		again := retriable(err)
		if ctx.Err() != nil {
			return zero, ctx.Err()
		}
		if !again {
			return zero, err
		}
		if time.Since(began) >= holdWithoutLeader {
			// That long only a leader that worked on it can have taken, so the
			// time without one begins now.
			deadline.Reset(holdWithoutLeader)
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-changed:
		case <-pause.C:
		case <-deadline.C:
			pause.Stop()
			return zero, e.noLeader(err)
		case <-ctx.Done():
			pause.Stop()
			return zero, ctx.Err()
		}
		pause.Stop()
	}
}

// attempt asks the leader of this moment once. It ends when changed is closed:
// a leader that hangs would never answer, while another one may be elected.
func attempt[T any](ctx context.Context, e *Engine, changed <-chan struct{}, local func(context.Context) (T, error),
	remote func(context.Context, peersvc.PeerClient) (T, error),
) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer cancelOn(ctx, cancel, changed)()
	id, addr := e.cfg.Replica.Leader()
	var zero T
	switch {
	case e.cfg.Replica.IsLeader():
		return local(ctx)
	case id == "" || id == e.cfg.Replica.ID():
		return zero, errNoneKnown
	}
	client, err := e.cfg.Peers.Client(addr)
	if err != nil {
		return zero, fmt.Errorf("%w: %w", errUnreachable, err)
	}
	return remote(ctx, client)
}

// cancelOn cancels when ch is closed; the returned function ends the wait and
// returns once it has ended.
func cancelOn(ctx context.Context, cancel context.CancelFunc, ch <-chan struct{}) (stop func()) {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		select {
		case <-ch:
			cancel()
		case <-done:
		case <-ctx.Done():
		}
	}()
	return func() { close(done); <-gone }
}
