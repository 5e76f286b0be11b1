package steal

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// appTimeout is how long the app has to take a passed-through connection.
	appTimeout = 5 * time.Second
	// acceptPause is how long an accept loop waits when the process has run
	// out of descriptors: connections end meanwhile and free some.
	acceptPause = 50 * time.Millisecond
)

// Proxy is the fallback backend: a listener in front of the app, for where
// connections cannot be steered in the kernel. It accepts everything, hands
// out what is armed and splices the rest to the app. Against a Worker it
// lacks two things: the app does not see its visitors' addresses, and when the
// process ends so do the connections it splices, and new ones are refused.
type Proxy struct {
	cfg      ProxyConfig
	listener *proxyListener
	dialer   net.Dialer
	counts   proxyCounts
	started  time.Time
	// beaten is when the heartbeat was written, since started; zero: never.
	beaten atomic.Int64

	// ctx ends when Close is called; it belongs to the goroutines below.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	armed  map[Key]bool          // guarded by mu
	conns  map[*net.TCPConn]bool // visitors being spliced; guarded by mu
	closed bool                  // guarded by mu
}

// proxyCounts are the counters of a Proxy.
type proxyCounts struct {
	stolen, stale, notArmed, overflow, refused atomic.Uint64
}

// NewProxy starts a Proxy. The caller closes it; when NewProxy fails, the
// listeners are still the caller's.
func NewProxy(cfg ProxyConfig) (*Proxy, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("start proxy: %w", err)
	}
	cfg = cfg.withDefaults()
	p := &Proxy{
		cfg:     cfg,
		started: time.Now(),
		armed:   map[Key]bool{},
		conns:   map[*net.TCPConn]bool{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.listener = &proxyListener{
		addr:  cfg.Routes[0].Listener.Addr(),
		queue: make(chan proxied, cfg.Queue),
		done:  make(chan struct{}),
		pass:  p.pass,
	}
	for _, r := range cfg.Routes {
		p.wg.Go(func() { p.serve(r) })
	}
	return p, nil
}

// Name implements Backend.
func (p *Proxy) Name() string { return NameProxy }

// Listener implements Port.
func (p *Proxy) Listener() net.Listener { return p.listener }

// Arm implements Port.
func (p *Proxy) Arm(k Key) error {
	k, err := k.canonical()
	if err != nil {
		return fmt.Errorf("arm: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.armed[k] && len(p.armed) >= MaxKeys {
		return fmt.Errorf("arm %v: %w", k, ErrTooManyKeys)
	}
	p.armed[k] = true
	return nil
}

// Disarm implements Port.
func (p *Proxy) Disarm(k Key) error {
	k, err := k.canonical()
	if err != nil {
		return fmt.Errorf("disarm: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.armed, k)
	return nil
}

// ArmedKeys implements Port.
func (p *Proxy) ArmedKeys() ([]Key, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.armed)), nil
}

// DialApp implements Port: it connects to the app of the route that dst
// belongs to, by address or else by port.
func (p *Proxy) DialApp(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	dst = netip.AddrPortFrom(dst.Addr().Unmap(), dst.Port())
	byPort := -1
	for i, r := range p.cfg.Routes {
		own := r.original(r.Listener.Addr())
		if own == dst {
			return p.dial(ctx, r)
		}
		if own.Port() == dst.Port() && byPort < 0 {
			byPort = i
		}
	}
	if byPort < 0 {
		return nil, fmt.Errorf("dial app at %v: no route has that port", dst)
	}
	return p.dial(ctx, p.cfg.Routes[byPort])
}

func (p *Proxy) dial(ctx context.Context, r Route) (net.Conn, error) {
	conn, err := p.dialer.DialContext(ctx, "tcp", r.App.String())
	if err != nil {
		return nil, fmt.Errorf("dial app: %w", err)
	}
	return conn, nil
}

// Beat implements Backend.
func (p *Proxy) Beat() error {
	p.beaten.Store(max(1, int64(time.Since(p.started))))
	return nil
}

// Stats implements Backend.
func (p *Proxy) Stats() (Stats, error) {
	return Stats{
		Stolen: p.counts.stolen.Load(), Stale: p.counts.stale.Load(),
		NotArmed: p.counts.notArmed.Load(), Overflow: p.counts.overflow.Load(),
		Refused: p.counts.refused.Load(),
	}, nil
}

// Close ends everything: the listeners, the connections being spliced, those
// that wait for Accept. Stolen connections that were accepted go on. It
// returns when all goroutines have ended.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		reset(c)
	}
	p.mu.Unlock()
	p.cancel()
	var errs []error
	for _, r := range p.cfg.Routes {
		if err := r.Listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	p.listener.Close()
	p.wg.Wait()
	return errors.Join(errs...)
}

// serve accepts the connections of a route.
func (p *Proxy) serve(r Route) {
	for {
		conn, err := r.Listener.AcceptTCP()
		switch {
		case err == nil:
			p.take(conn, r)
		case p.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-time.After(acceptPause):
			case <-p.ctx.Done():
				return
			}
		}
	}
}

// take decides what becomes of a connection.
func (p *Proxy) take(conn *net.TCPConn, r Route) {
	dst := r.original(conn.LocalAddr())
	switch {
	case !p.isArmed(dst):
		p.counts.notArmed.Add(1)
	case !p.isBeating():
		p.counts.stale.Add(1)
	case p.listener.offer(proxied{conn, r, dst}):
		p.counts.stolen.Add(1)
		return
	default:
		p.counts.overflow.Add(1)
	}
	p.pass(conn, r)
}

func (p *Proxy) isArmed(dst netip.AddrPort) bool {
	k, err := TCPKey(dst).canonical()
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed[k] || p.armed[k.wildcard()]
}

func (p *Proxy) isBeating() bool {
	beaten := time.Duration(p.beaten.Load())
	return beaten != 0 && time.Since(p.started)-beaten <= p.cfg.StaleAfter
}

// pass splices a connection to the app, on a goroutine of its own.
func (p *Proxy) pass(conn *net.TCPConn, r Route) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		reset(conn)
		return
	}
	if len(p.conns) >= p.cfg.MaxConns {
		p.counts.refused.Add(1)
		reset(conn)
		return
	}
	p.conns[conn] = true
	p.wg.Go(func() {
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, conn)
		}()
		ctx, cancel := context.WithTimeout(p.ctx, appTimeout)
		app, err := p.dial(ctx, r)
		cancel()
		if err != nil {
			// What the visitor would have seen from an app that is not there.
			p.counts.refused.Add(1)
			reset(conn)
			return
		}
		splice(conn, app.(*net.TCPConn))
	})
}
