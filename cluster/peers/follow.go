package peers

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"trivet/cluster/attach"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// Target is another server.
type Target struct{ ID, Address string }

// again is the pause between two streams to one server.
const again = 50 * time.Millisecond

// Follower keeps a stream of attachments from every other server and feeds
// them into a view.
type Follower struct {
	pool *Pool
	view *attach.View
	log  *slog.Logger

	mu      sync.Mutex
	streams map[string]*followed
	wg      sync.WaitGroup
}

// followed is what follows one server, by id.
type followed struct {
	address string
	cancel  context.CancelFunc
	gone    chan struct{}
}

// NewFollower feeds view.
func NewFollower(pool *Pool, view *attach.View, log *slog.Logger) *Follower {
	return &Follower{pool: pool, view: view, log: log, streams: make(map[string]*followed)}
}

// Reconcile makes the set of followed servers equal to want. Streams end with
// ctx; Wait waits for that.
func (f *Follower) Reconcile(ctx context.Context, want []Target) {
	f.mu.Lock()
	defer f.mu.Unlock()
	keep := make(map[string]bool, len(want))
	for _, t := range want {
		keep[t.ID] = true
		old := f.streams[t.ID]
		if old != nil && old.address == t.Address {
			continue
		}
		before := make(chan struct{})
		if old == nil {
			close(before)
		} else {
			old.cancel()
			before = old.gone
		}
		sctx, cancel := context.WithCancel(ctx)
		next := &followed{address: t.Address, cancel: cancel, gone: make(chan struct{})}
		f.streams[t.ID] = next
		f.wg.Add(1)
		go f.run(sctx, t, before, next.gone)
	}
	for id, s := range f.streams {
		if !keep[id] {
			// It stays in the map, ended, in case the server comes back.
			s.cancel()
			s.address = ""
		}
	}
}

// Wait returns when all streams have ended.
func (f *Follower) Wait() { f.wg.Wait() }

// run begins once what followed the server before has ended, or else the drop
// with which that ends could hit what is new.
func (f *Follower) run(ctx context.Context, t Target, before <-chan struct{}, gone chan<- struct{}) {
	defer f.wg.Done()
	defer close(gone)
	<-before
	for ctx.Err() == nil {
		err := f.stream(ctx, t)
		f.view.Drop(t.ID)
		if ctx.Err() != nil {
			return
		}
		f.log.Debug("attachments of a server are unknown", "server", t.ID, "err", err)
		pause := time.NewTimer(again)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
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
		if u.GetServerId() != t.ID {
			return fmt.Errorf("server %s answers at %s", u.GetServerId(), t.Address)
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
