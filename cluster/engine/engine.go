package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
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
	// Secrets hides what must not be replicated in clear; nil: nothing is.
	Secrets Secrets
	// Members lists the ids in the Raft configuration with the command versions
	// that they said to know, 0 for those that were not heard; nil: the servers
	// that have a row are all there are.
	Members func() map[string]uint32
	Logger  *slog.Logger
}

// Secrets knows what in a command is secret.
type Secrets interface {
	// Digest is a hash of a whole command that does not help to guess what is
	// in it; equal on all servers. At least 16 bytes.
	Digest(data []byte) []byte
	// Seal replaces what is secret in cmd. Messages that cmd points to may be
	// shared: they are replaced, not changed.
	Seal(cmd *commandv1.Command)
}

// Engine writes and reads on behalf of handlers. Make it with New, end it with
// Close.
type Engine struct {
	cfg    Config
	writer atomic.Pointer[writer]
	// caughtUp: this process has had a state that was the newest.
	caughtUp atomic.Bool
	reads    *readRounds
	touch    *touchBatcher

	ctx    context.Context
	cancel context.CancelFunc

	mu sync.Mutex
	// epoch ends with the leader of the moment; guarded by mu.
	epoch    context.Context
	endEpoch context.CancelFunc
	toucher  Toucher
}

// New starts the engine.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	e.epoch, e.endEpoch = context.WithCancel(context.Background())
	e.writer.Store(newWriter("server/" + cfg.Replica.ID() + "/" + cfg.BootID))
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
	e.endEpoch()
	e.epoch, e.endEpoch = context.WithCancel(context.Background())
}

// leaderEpoch ends with the next change of leader.
func (e *Engine) leaderEpoch() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.epoch
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
	// The first attempt mostly succeeds, so what the others need is made after
	// it.
	held := time.Now()
	for {
		epoch := e.leaderEpoch()
		began := time.Now()
		out, err := attempt(ctx, e, epoch, local, remote)
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
			held = time.Now()
		}
		left := holdWithoutLeader - time.Since(held)
		if left <= 0 {
			return zero, e.noLeader(err)
		}
		pause := time.NewTimer(min(retryPause, left))
		select {
		case <-epoch.Done():
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return zero, ctx.Err()
		}
		pause.Stop()
	}
}

// attempt asks the leader of this moment once. It ends with the epoch: a leader
// that hangs would never answer, while another one may be elected.
func attempt[T any](ctx context.Context, e *Engine, epoch context.Context, local func(context.Context) (T, error),
	remote func(context.Context, peersvc.PeerClient) (T, error),
) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(epoch, cancel)()
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
