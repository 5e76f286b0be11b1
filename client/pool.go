package client

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Reasons of the errors about connections.
const (
	// ReasonNoServer: none of the servers could be reached.
	ReasonNoServer = "NO_SERVER"
	// ReasonNoAnswer: a server did not answer in time.
	ReasonNoAnswer = "NO_ANSWER"
	// ReasonConnectionLost: a connection that worked broke.
	ReasonConnectionLost = "CONNECTION_LOST"
	// ReasonDraining: a server is shutting down in an orderly way.
	ReasonDraining = "SERVER_DRAINING"
	// ReasonNotServing: a server says that it cannot serve.
	ReasonNotServing = "SERVER_NOT_SERVING"
	// ReasonClosed: the pool was closed by its owner.
	ReasonClosed = "POOL_CLOSED"
)

// Defaults of Options.
const (
	// DefaultCallTimeout covers a server that holds a write for 5 s while
	// there is no leader, twice, and the way to the next server.
	DefaultCallTimeout = 15 * time.Second
	// DefaultPatience covers the restart of a server that is the only one.
	DefaultPatience = 2 * time.Second
	// DefaultAttemptTimeout is generous for a handshake across a continent and
	// short for a user who waits because a server hangs.
	DefaultAttemptTimeout = 2 * time.Second
	// DefaultPingAfter and DefaultPingTimeout notice a hung server in 3 s.
	DefaultPingAfter   = time.Second
	DefaultPingTimeout = 2 * time.Second
)

// The redial schedule: tight, because a server that is back, or another one,
// mostly is there in a moment, and capped so that nobody waits long after an
// outage. Jitter keeps clients from coming in step.
const (
	redialMin = 20 * time.Millisecond
	redialMax = 200 * time.Millisecond
	// lingerTimeout bounds how long a link that is not current any more is
	// kept for the streams on it; servers drain for 25 s.
	lingerTimeout = 30 * time.Second
	// steady is how old a link must get to count as one that works.
	steady = time.Second
)

// Options of a Pool. The zero value is usable.
type Options struct {
	// Prefer is the address of the server to begin with; it need not be among
	// the context's servers. The others remain for failover.
	Prefer string
	// Consistency is asked for on reads; empty leaves it to the servers.
	Consistency Consistency
	// CallTimeout bounds unary calls whose context has no deadline.
	CallTimeout time.Duration
	// Patience is how long a call waits while no server can be reached;
	// negative means not at all.
	Patience time.Duration
	// AttemptTimeout bounds one attempt to connect to one server.
	AttemptTimeout time.Duration
	// PingAfter is the silence after which the server is pinged, PingTimeout
	// how long its answer may take.
	PingAfter, PingTimeout time.Duration
	// Dialer makes TCP connections; nil means net.Dialer.
	Dialer func(ctx context.Context, addr string) (net.Conn, error)
	// Log receives what happens to connections; nil drops it.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.CallTimeout, DefaultCallTimeout)
	set(&o.Patience, DefaultPatience)
	set(&o.AttemptTimeout, DefaultAttemptTimeout)
	set(&o.PingAfter, DefaultPingAfter)
	set(&o.PingTimeout, DefaultPingTimeout)
	if o.Dialer == nil {
		o.Dialer = func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Pool keeps one link to one of a cluster's servers and replaces it when its
// server is gone, hung or shutting down. It implements
// grpc.ClientConnInterface: unary calls fail over between servers, streams go
// to the current one. It is safe for concurrent use.
type Pool struct {
	servers  []string
	opts     Options
	source   *pki.Source
	tls      *tls.Config
	writer   *writer
	revision revisionMark

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex
	current *Link         // guarded by mu; nil while there is none
	outage  *outage       // guarded by mu; set after a round without success
	closed  bool          // guarded by mu
	changed chan struct{} // guarded by mu; closed and replaced at any change
}

// Dial starts a pool for the servers of c and waits for its first link. The
// error explains per server why there is none. The caller closes the pool.
func Dial(ctx context.Context, c Context, opts Options) (*Pool, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	source, err := c.Source()
	if err != nil {
		return nil, fmt.Errorf("open the bundle of context %q: %w", c.Name, err)
	}
	// A laptop that slept goes on where it was.
	if err := enroll.Refresh(ctx, source, c.Servers); err != nil {
		return nil, err
	}
	if err := source.Bundle().ValidAt(time.Now()); err != nil {
		return nil, err
	}
	p := &Pool{
		servers: slices.Clone(c.Servers),
		opts:    opts.withDefaults(),
		source:  source,
		tls:     pki.ClientConfig(source, pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleServer}}),
		writer:  newWriter(),
		changed: make(chan struct{}),
	}
	if opts.Prefer != "" {
		rest := slices.DeleteFunc(p.servers, func(s string) bool { return s == opts.Prefer })
		p.servers = append([]string{opts.Prefer}, rest...)
	}
	runCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop = stop
	p.wg.Go(func() { p.run(runCtx) })
	p.wg.Go(func() {
		enroll.Keep(runCtx, source, enroll.Asker(source, func() []string { return c.Servers }), p.opts.Log)
	})
	if _, err := p.Current(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Servers returns the addresses in the order in which they are tried.
func (p *Pool) Servers() []string { return slices.Clone(p.servers) }

// Close ends all connections and waits for the pool's goroutines. Calls that
// are under way fail.
func (p *Pool) Close() {
	p.stop()
	p.wg.Wait()
}

// Current returns the link in use. While there is none it waits: until ctx
// ends, or until no server was reachable for Options.Patience.
func (p *Pool) Current(ctx context.Context) (*Link, error) { return p.await(ctx, false) }

// Await is Current with endless patience, for what runs in the background.
func (p *Pool) Await(ctx context.Context) (*Link, error) { return p.await(ctx, true) }

func (p *Pool) await(ctx context.Context, endless bool) (*Link, error) {
	for {
		p.mu.Lock()
		link, out, closed, changed := p.current, p.outage, p.closed, p.changed
		p.mu.Unlock()
		switch {
		case closed:
			return nil, errs.New(codes.Canceled, ReasonClosed, "the connection was closed")
		case link != nil && link.Cause() == nil:
			return link, nil
		}
		left := time.Hour
		if out != nil && !endless {
			left = time.Until(out.since.Add(p.opts.Patience))
			if left <= 0 || out.refused {
				return nil, out.err
			}
		}
		timer := time.NewTimer(left)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			if out != nil {
				return nil, out.err
			}
			return nil, fmt.Errorf("connect to a server: %w", context.Cause(ctx))
		}
		timer.Stop()
	}
}

// Outage returns why there is no link right now, nil if there is one or the
// first round of attempts is not over.
func (p *Pool) Outage() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current != nil || p.outage == nil {
		return nil
	}
	return p.outage.err
}

func (p *Pool) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}
