package exchange

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/attach"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/tunnel"
)

const (
	// maxDial bounds how long an end waits for the other one, whatever its peer
	// asks for.
	maxDial = 30 * time.Second
	// minDial is for peers that ask for less than any dial takes.
	minDial = time.Second
	// maxWaiting bounds the ends that wait at the same time. Each holds a
	// stream and a user's connection.
	maxWaiting = 8192
	// recentOrigins bounds what is remembered of offers that came from other
	// servers.
	recentOrigins = 8192
)

// Peers reaches the other servers by id.
type Peers interface {
	// Others lists the ids of the other servers.
	Others() []string
	// Offer asks a server to pass a dial request on.
	Offer(ctx context.Context, server string, offer *peerv1.DialOffer) (delivered bool, err error)
	// Relay joins the end that waits on a server; ErrNobodyWaits if none does.
	// The stream's life ends with ctx or its abort.
	Relay(ctx context.Context, server, session string, id tunnel.ConnID) (tunnel.Stream, error)
}

// ErrNobodyWaits: no end of that connection waits on that server.
var ErrNobodyWaits = errors.New("nobody waits for this connection here")

// Config of an Exchange.
type Config struct {
	// Self is this server's id.
	Self     string
	Registry *attach.Registry
	View     *attach.View
	Peers    Peers
	Logger   *slog.Logger
	// Stopping is closed when this server is on its way out; nil means never.
	Stopping <-chan struct{}
}

// Exchange pairs tunnel ends. All methods may be called from any goroutine.
type Exchange struct {
	cfg Config

	mu      sync.Mutex
	waiting map[key]*waiter
	origins map[key]string
	order   []key

	counters tunnel.Counters
	open     atomic.Int64
	total    atomic.Uint64
	failed   atomic.Uint64
}

type key struct {
	session string
	id      tunnel.ConnID
}

func (k key) datagram() bool { return k.id.Protocol() == tunnel.UDP }

// waiter is an end that waits; its handler takes one arrival.
type waiter struct{ arrivals chan *arrival }

// arrival is the second end. Its handler waits for done and then returns err.
type arrival struct {
	stream tunnel.Stream
	done   chan struct{}
	err    error
}

// New makes an Exchange.
func New(cfg Config) *Exchange {
	return &Exchange{cfg: cfg, waiting: make(map[key]*waiter), origins: make(map[key]string)}
}

// Stats are totals since the start; Open is the number of joined tunnels now.
type Stats struct {
	Open             int64
	Total, Failed    uint64
	BytesIn, BytesTo uint64
	Waiting          int
}

// Stats returns the counters. Bytes are counted once, on the server where the
// first end waits.
func (x *Exchange) Stats() Stats {
	x.mu.Lock()
	waiting := len(x.waiting)
	x.mu.Unlock()
	return Stats{
		Open: x.open.Load(), Total: x.total.Load(), Failed: x.failed.Load(), Waiting: waiting,
		BytesIn: x.counters.In.Load(), BytesTo: x.counters.Out.Load(),
	}
}

// Await makes the end that arrived first wait for one of session, which is
// asked to dial, and then relays between the two until the tunnel ends.
func (x *Exchange) Await(ctx context.Context, first tunnel.Stream, info tunnel.StreamInfo, session string) error {
	k := key{session, info.ConnID}
	w, err := x.register(k)
	if err != nil {
		return err
	}
	second, err := x.dial(ctx, k, w, info, dialLimit(info))
	x.unregister(k, w)
	if err != nil {
		x.failed.Add(1)
		return err
	}
	x.total.Add(1)
	x.open.Add(1)
	defer x.open.Add(-1)
	st := tunnel.Relay(ctx, first, second.stream, tunnel.Options{Datagram: k.datagram(), Counters: &x.counters})
	second.err = st.ErrB
	close(second.done)
	return st.ErrA
}

// dialLimit is what the peer asks for, within bounds. Either part may be as
// large as a Duration can be.
func dialLimit(info tunnel.StreamInfo) time.Duration {
	return min(max(min(info.DialTimeout, maxDial)+min(info.RoundtripLatency, maxDial), minDial), maxDial)
}

func (x *Exchange) register(k key) (*waiter, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, dup := x.waiting[k]; dup {
		return nil, errs.New(codes.AlreadyExists, "TUNNEL_DUPLICATE", "connection %s of session %q is being established already", k.id, k.session)
	}
	if len(x.waiting) >= maxWaiting {
		return nil, errs.New(codes.ResourceExhausted, "BACKPRESSURE", "%d connections wait for their other end already", len(x.waiting)).
			WithRetry(time.Second)
	}
	w := &waiter{arrivals: make(chan *arrival, 1)}
	x.waiting[k] = w
	return w, nil
}

// unregister also turns away an arrival that came too late.
func (x *Exchange) unregister(k key, w *waiter) {
	x.mu.Lock()
	if x.waiting[k] == w {
		delete(x.waiting, k)
	}
	x.mu.Unlock()
	select {
	case a := <-w.arrivals:
		a.err = nobody(k)
		close(a.done)
	default:
	}
}

// dial passes the request to a server that holds the session's dial stream, to
// the next one (or the same again, when the session has a new stream there) if
// that fails, and waits for the other end.
func (x *Exchange) dial(ctx context.Context, k key, w *waiter, info tunnel.StreamInfo, limit time.Duration) (*arrival, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req := &manager.DialRequest{
		ConnId:           info.ConnID.Bytes(),
		RoundtripLatency: int64(info.RoundtripLatency), DialTimeout: int64(info.DialTimeout),
	}
	tried := make(map[attach.Offer]bool)
	delivered := false
	offers := make(chan bool, 1)
	next := func() {
		to, err := x.cfg.View.WaitOffer(ctx, k.session, tried)
		if err != nil {
			return
		}
		tried[to] = true
		offers <- x.offer(ctx, to.Server, k.session, req)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(next)
	for {
		select {
		case a := <-w.arrivals:
			return a, nil
		case ok := <-offers:
			delivered = delivered || ok
			if !ok {
				wg.Go(next)
			}
		case <-ctx.Done():
			return w.orElse(x.dialError(ctx, k, delivered, limit))
		case <-x.cfg.Stopping:
			// The other end could not get here any more. Nothing has been read
			// from the visitor yet, so the peer can begin again elsewhere.
			return w.orElse(errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").
				WithHint("ask another server"))
		}
	}
}

// orElse returns the arrival if it has come in the same instant as the end of
// the wait.
func (w *waiter) orElse(err error) (*arrival, error) {
	select {
	case a := <-w.arrivals:
		return a, nil
	default:
		return nil, err
	}
}

func (x *Exchange) dialError(ctx context.Context, k key, delivered bool, limit time.Duration) error {
	switch {
	case !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errs.New(codes.Canceled, "TUNNEL_CANCELED", "the caller ended the tunnel before session %q answered", k.session)
	case delivered:
		return errs.New(codes.DeadlineExceeded, "TUNNEL_TIMEOUT", "timeout while establishing bidipipe: session %q was asked to dial %s and did not answer within %s",
			k.session, k.id.Destination(), limit)
	default:
		return errs.New(codes.Unavailable, "OWNER_NOT_ATTACHED", "session %q has no dial stream on any server", k.session).
			WithHint("the owner of the intercept is away; it re-arms when it is back").WithRetry(time.Second)
	}
}

func (x *Exchange) offer(ctx context.Context, server, session string, req *manager.DialRequest) bool {
	var err error
	ok := true
	if server == x.cfg.Self {
		err = x.cfg.Registry.Offer(session, req)
	} else {
		ok, err = x.cfg.Peers.Offer(ctx, server, &peerv1.DialOffer{SessionId: session, Request: req, Origin: x.cfg.Self})
	}
	if err != nil || !ok {
		x.cfg.Logger.Debug("a dial request was not delivered", "server", server, "session", session, "err", err)
		return false
	}
	return true
}

// Offered takes another server's dial request for a session attached here and
// remembers where the other end waits.
func (x *Exchange) Offered(offer *peerv1.DialOffer) (delivered bool, err error) {
	id, err := tunnel.ParseConnID(offer.GetRequest().GetConnId())
	if err != nil {
		return false, errs.New(codes.InvalidArgument, "TUNNEL_MALFORMED", "dial offer: %w", err)
	}
	x.remember(key{offer.GetSessionId(), id}, offer.GetOrigin())
	if err := x.cfg.Registry.Offer(offer.GetSessionId(), offer.GetRequest()); err != nil {
		return false, nil
	}
	return true, nil
}

func (x *Exchange) remember(k key, origin string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, known := x.origins[k]; !known {
		x.order = append(x.order, k)
		if len(x.order) > recentOrigins {
			delete(x.origins, x.order[0])
			x.order = x.order[1:]
		}
	}
	x.origins[k] = origin
}

// Answer brings the end that arrived second to the one that waits and returns
// when the tunnel has ended.
func (x *Exchange) Answer(ctx context.Context, second tunnel.Stream, info tunnel.StreamInfo) error {
	k := key{info.SessionID, info.ConnID}
	err := x.JoinHere(ctx, second, k.session, k.id)
	if !errors.Is(err, ErrNobodyWaits) {
		return err
	}
	for _, server := range x.candidates(k) {
		rctx, cancel := context.WithCancel(ctx)
		far, err := x.cfg.Peers.Relay(rctx, server, k.session, k.id)
		if err != nil {
			cancel()
			if !errors.Is(err, ErrNobodyWaits) {
				x.cfg.Logger.Debug("a server could not be asked for a tunnel's other end", "server", server, "err", err)
			}
			continue
		}
		st := tunnel.Relay(ctx, second, far, tunnel.Options{Datagram: k.datagram()})
		cancel()
		return st.ErrA
	}
	x.failed.Add(1)
	return nobody(k)
}

// Waits says whether an end for session waits on this server under id.
func (x *Exchange) Waits(session string, id tunnel.ConnID) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.waiting[key{session, id}] != nil
}

// JoinHere is Answer without asking other servers: ErrNobodyWaits if the end
// does not wait here.
func (x *Exchange) JoinHere(ctx context.Context, second tunnel.Stream, session string, id tunnel.ConnID) error {
	k := key{session, id}
	x.mu.Lock()
	w := x.waiting[k]
	if w == nil {
		x.mu.Unlock()
		return ErrNobodyWaits
	}
	// Whoever comes first gets it; a second arrival never displaces it.
	delete(x.waiting, k)
	a := &arrival{stream: second, done: make(chan struct{})}
	w.arrivals <- a
	x.mu.Unlock()
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		// Relay sees the same end and closes done; waiting for it keeps the
		// stream alive while it is still used.
		<-a.done
		return a.err
	}
}

// candidates lists the servers to ask, the one that made the offer first.
func (x *Exchange) candidates(k key) []string {
	x.mu.Lock()
	origin, known := x.origins[k]
	x.mu.Unlock()
	others := x.cfg.Peers.Others()
	if !known {
		return others
	}
	out := []string{origin}
	for _, id := range others {
		if id != origin {
			out = append(out, id)
		}
	}
	return out
}

func nobody(k key) error {
	return errs.New(codes.FailedPrecondition, "TUNNEL_NO_PEER", "nobody waits for connection %s of session %q", k.id, k.session).
		WithHint("answer a dial request within its time")
}
