package managerapi

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
)

// gather is how long a watch of many items waits after a change for others that
// come with it: a burst of arrivals is one delta then, not one per arrival. It
// is that of the published manager.
const gather = 5 * time.Millisecond

// items is what a watch shows: messages by key. Its functions look at a state
// only, so that a watch may compare what it sent with any newer one.
type items[V proto.Message] struct {
	// touched names the items that an event may have changed.
	touched func(root *fsm.Root, e fsm.Event, key func(string))
	// item is the one under a key; false: none, or none that the watch shows.
	item func(root *fsm.Root, key string) (V, bool)
	// all lists every item.
	all func(root *fsm.Root, yield func(key string, v V))
}

// delta is what changed of some items.
type delta[V proto.Message] struct {
	upserts map[string]V
	// removals are sorted.
	removals []string
}

func (d delta[V]) empty() bool { return len(d.upserts) == 0 && len(d.removals) == 0 }

// sent is what the reader of a watch knows.
type sent[V proto.Message] map[string]V

// replace makes next what the reader knows, and returns the difference.
func (s sent[V]) replace(next map[string]V) delta[V] {
	d := delta[V]{upserts: make(map[string]V)}
	for key := range s {
		if _, ok := next[key]; !ok {
			d.removals = append(d.removals, key)
			delete(s, key)
		}
	}
	slices.Sort(d.removals)
	for key, v := range next {
		if old, ok := s[key]; !ok || !proto.Equal(old, v) {
			d.upserts[key], s[key] = v, v
		}
	}
	return d
}

// update brings the items under some keys up to date, and returns the
// difference.
func (s sent[V]) update(root *fsm.Root, keys map[string]struct{}, item func(*fsm.Root, string) (V, bool)) delta[V] {
	d := delta[V]{upserts: make(map[string]V)}
	for key := range keys {
		old, known := s[key]
		switch v, ok := item(root, key); {
		case ok && (!known || !proto.Equal(old, v)):
			d.upserts[key], s[key] = v, v
		case !ok && known:
			d.removals = append(d.removals, key)
			delete(s, key)
		}
	}
	slices.Sort(d.removals)
	return d
}

func (it items[V]) everything(root *fsm.Root) map[string]V {
	out := make(map[string]V)
	it.all(root, func(key string, v V) { out[key] = v })
	return out
}

// watch is a stream that follows the state.
type watch struct {
	s       *Service
	stream  grpc.ServerStream
	session string
	cur     *fsm.Cursor
	// pause is how long changes are gathered.
	pause time.Duration
}

// watch starts a stream of a session ("": of nobody's) on the newest state. end
// must be called.
func (s *Service) watch(stream grpc.ServerStream, session string, pause time.Duration) (w *watch, root *fsm.Root, end func(), err error) {
	end = func() {}
	if session != "" {
		detach := s.openWatch(session)
		end = func() { detach(s.endedByPeer()) }
	}
	root = s.cfg.Core.Root()
	w = &watch{s: s, stream: stream, session: session, cur: s.cfg.Core.WatchFrom(root), pause: pause}
	if err := stream.SendHeader(metadata.Pairs(engine.MetaRevision, revision(root))); err != nil {
		return nil, nil, end, err
	}
	return w, root, end, nil
}

const (
	// ownProduct is how the project's own clients introduce themselves: they have
	// a dial stream whatever version of the contract they speak.
	ownProduct = "trivet"
	// firstWithoutDial is the first version of published clients that agents reach
	// over streams which the clients open to them, not over the manager's.
	firstWithoutDial = "2.22.0"
)

// openWatch registers a stream of a session. A client that agents reach without
// the manager is taken to be there while it has any.
func (s *Service) openWatch(session string) (closeWatch func(endedByPeer bool)) {
	row, _ := s.cfg.Core.Root().Session(session)
	if c := row.GetClient(); c != nil && c.GetProduct() != ownProduct && fsm.AtLeast(c.GetVersion(), firstWithoutDial) {
		return s.cfg.Registry.OpenOwner(session)
	}
	return s.cfg.Registry.OpenWatch(session)
}

// next waits for a change of the state. more is false when the stream is over:
// with nil, because its session is.
func (w *watch) next() (b fsm.Batch, more bool, err error) {
	ctx := w.stream.Context()
	if err := w.wait(ctx, w.cur.Wait()); err != nil {
		return b, false, err
	}
	if w.pause > 0 {
		timer := time.NewTimer(w.pause)
		defer timer.Stop()
		if err := wait(ctx, w.s.cfg.Stopping, timer.C); err != nil {
			return b, false, err
		}
	}
	b = w.cur.Next()
	if w.session != "" {
		if _, ok := b.Root.Session(w.session); !ok {
			return b, false, nil
		}
	}
	return b, true, nil
}

func (w *watch) wait(ctx context.Context, c <-chan struct{}) error {
	return wait(ctx, w.s.cfg.Stopping, c)
}

func wait[T any](ctx context.Context, stopping <-chan struct{}, c <-chan T) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-stopping:
		return errStopping()
	}
}

func errStopping() error {
	return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").WithHint("reconnect to another server")
}

// followItems sends all items at once, even if there are none, and then what
// changes, until the session ends (nil), the peer goes or the server stops. What
// changes while the reader is busy is folded into its next delta. show sends
// one; snapshots get all items with it.
func followItems[V proto.Message](s *Service, stream grpc.ServerStream, session string, pause time.Duration, it items[V],
	show func(d delta[V], all sent[V]) error,
) error {
	w, root, end, err := s.watch(stream, session, pause)
	defer end()
	if err != nil {
		return err
	}
	known := make(sent[V])
	if err := show(known.replace(it.everything(root)), known); err != nil {
		return err
	}
	for {
		b, more, err := w.next()
		if !more {
			return err
		}
		var d delta[V]
		if b.Resync {
			d = known.replace(it.everything(b.Root))
		} else {
			keys := make(map[string]struct{})
			for _, e := range b.Events {
				it.touched(b.Root, e, func(key string) { keys[key] = struct{}{} })
			}
			d = known.update(b.Root, keys, it.item)
		}
		if d.empty() {
			continue
		}
		if err := show(d, known); err != nil {
			return err
		}
	}
}
