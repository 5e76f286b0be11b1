package peers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"trivet/cluster/attach"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// Target is another server.
type Target struct{ ID, Address string }

// Follower keeps a stream of attachments from every other server and feeds
// them into a view.
type Follower struct {
	pool *Pool
	view *attach.View
	log  *slog.Logger

	mu      sync.Mutex
	streams map[Target]context.CancelFunc
	wg      sync.WaitGroup
}

// NewFollower feeds view.
func NewFollower(pool *Pool, view *attach.View, log *slog.Logger) *Follower {
	return &Follower{pool: pool, view: view, log: log, streams: make(map[Target]context.CancelFunc)}
}

// Reconcile makes the set of followed servers equal to want. Streams end with
// ctx; Wait waits for that.
func (f *Follower) Reconcile(ctx context.Context, want []Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := make(map[Target]bool, len(want))
	for _, t := range want {
		keep[t] = true
		if f.streams[t] != nil {
			continue
		}
		sctx, cancel := context.WithCancel(ctx)
		f.streams[t] = cancel
		f.wg.Add(1)
		go f.run(sctx, t)
	}
	for t, cancel := range f.streams {
		if !keep[t] {
			cancel()
			delete(f.streams, t)
		}
	}
}

// Wait returns when all streams have ended.
func (f *Follower) Wait() { f.wg.Wait() }

func (f *Follower) run(ctx context.Context, t Target) {
	defer f.wg.Done()
	defer f.view.Drop(t.ID)
	for ctx.Err() == nil {
		if err := f.stream(ctx, t); ctx.Err() == nil {
			f.log.Debug("attachments of a server are unknown", "server", t.ID, "err", err)
		}
		f.view.Drop(t.ID)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// stream follows one server until the stream ends, which is always an error.
func (f *Follower) stream(ctx context.Context, t Target) error {
	client, err := f.pool.Client(t.Address)
	if err != nil {
		return err
	}
	stream, err := client.WatchAttachments(ctx, &peerv1.WatchAttachmentsRequest{})
	if err != nil {
		return err
	}
	for {
		u, err := stream.Recv()
		if err != nil {
			return err
		}
		atts := make([]attach.Attachment, 0, len(u.GetAttachments()))
		for _, a := range u.GetAttachments() {
			atts = append(atts, attach.Attachment{
				SessionID: a.GetSessionId(), DialStreams: int(a.GetDialStreams()),
				WatchStreams: int(a.GetWatchStreams()), EndedByPeer: a.GetEndedByPeer(),
			})
		}
		f.view.Set(u.GetServerId(), u.GetBootId(), u.GetReset_(), atts)
	}
}
