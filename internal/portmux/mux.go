package portmux

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Waits of the accept loop when the system is out of something.
const (
	acceptBackoffMin = 5 * time.Millisecond
	acceptBackoffMax = time.Second
)

// Mux routes the connections of one port.
type Mux struct {
	ln    net.Listener
	conf  *tls.Config
	opts  Options
	count *counters
	slots chan struct{} // one element per connection that has sent something and is being routed
	done  chan struct{} // closed by shutdown

	// wg counts the accept loop and the goroutines of connections. Add is
	// called under mu while closed is false, so never after Wait.
	wg sync.WaitGroup

	mu        sync.Mutex
	serving   bool                      // guarded by mu
	closed    bool                      // guarded by mu
	listeners map[string]*listener      // guarded by mu
	handlers  map[string]func(net.Conn) // guarded by mu
	prefixes  []string                  // guarded by mu; longest first
	owned     map[*conn]struct{}        // guarded by mu; to be closed by shutdown
	pending   int                       // guarded by mu; connections being routed
	addresses map[string]int            // guarded by mu; of these, by remote address
	holders   map[string]map[*conn]bool // guarded by mu; open connections by identity
	delivered map[string]uint64         // guarded by mu
	rawCount  map[string]uint64         // guarded by mu
}

// New makes a Mux for ln, which it owns from then on. tlsConf decides who may
// connect and lists, in NextProtos, the ALPN names that can be negotiated; it
// is copied. Nothing is accepted before Serve.
func New(ln net.Listener, tlsConf *tls.Config, opts Options) *Mux {
	opts = opts.withDefaults()
	return &Mux{
		ln:        ln,
		conf:      watchHello(tlsConf),
		opts:      opts,
		count:     newCounters(),
		slots:     make(chan struct{}, opts.MaxHandshakes),
		done:      make(chan struct{}),
		listeners: make(map[string]*listener),
		handlers:  make(map[string]func(net.Conn)),
		prefixes:  []string{RelayPreamble},
		owned:     make(map[*conn]struct{}),
		addresses: make(map[string]int),
		holders:   make(map[string]map[*conn]bool),
		delivered: make(map[string]uint64),
		rawCount:  make(map[string]uint64),
	}
}

// Addr returns the address of the port.
func (m *Mux) Addr() net.Addr { return m.ln.Addr() }

// ALPN returns the listener of an ALPN name; as long as it is open, every call
// with that name returns the same one. Its connections are *tls.Conn with the
// handshake done and no deadline set. Closing it leaves the port and the other
// names alone; peers that ask for its name are turned away then.
func (m *Mux) ALPN(name string) net.Listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l, ok := m.listeners[name]; ok && (m.closed || !l.isClosed()) {
		return l
	}
	l := newListener(m.ln.Addr(), m.opts.Backlog)
	if m.closed {
		_ = l.Close() // never fails
	}
	m.listeners[name] = l
	return l
}

// Raw registers the handler of connections that start with prefix, or removes
// it when handle is nil. The handler runs in a goroutine of its own, sees the
// stream from its first byte, prefix included, with no deadline set, and must
// close the connection. Close of the Mux ends connections whose handler still
// runs and waits for it; a handler that returns early has taken the connection
// away. The connection has NetConn and CloseWrite.
//
// Raw panics when prefix is empty or looks like TLS.
func (m *Mux) Raw(prefix string, handle func(net.Conn)) {
	if prefix == "" || prefix[0] == tlsHandshake {
		panic(fmt.Sprintf("portmux: raw prefix %q cannot be told from TLS", prefix))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if handle == nil {
		delete(m.handlers, prefix)
		return
	}
	m.handlers[prefix] = handle
	if !slices.Contains(m.prefixes, prefix) {
		// A new slice: goroutines that sniff hold the old one.
		m.prefixes = append(slices.Clone(m.prefixes), prefix)
		slices.SortFunc(m.prefixes, func(a, b string) int { return len(b) - len(a) })
	}
}

// Serve accepts connections until ctx ends or Close is called, and then
// returns nil, or until the port breaks; a Close that came first makes no
// difference. When it returns, the Mux is closed and all its goroutines are
// gone. It refuses, leaving the Mux as it is, when the Mux is served already,
// or when a listener's ALPN name is not in the TLS configuration.
func (m *Mux) Serve(ctx context.Context) error {
	if ok, err := m.start(); !ok {
		return err
	}
	watched := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(watched)
		m.shutdown()
	})
	err := m.acceptLoop()
	m.wg.Done()
	if !stop() {
		<-watched
	}
	return errors.Join(err, m.Close())
}

// start marks the Mux as serving and counts the accept loop, unless there is
// nothing to serve.
func (m *Mux) start() (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return false, nil
	}
	if m.serving {
		return false, fmt.Errorf("serve %s: already served", m.ln.Addr())
	}
	for name := range m.listeners {
		if !slices.Contains(m.conf.NextProtos, name) {
			return false, fmt.Errorf("serve %s: the TLS configuration does not offer protocol %q, "+
				"so its listener would wait forever", m.ln.Addr(), name)
		}
	}
	m.serving = true
	m.wg.Add(1)
	return true, nil
}

// Close closes the port, all listeners and every connection that the Mux still
// owns, and waits for its goroutines. Connections that were handed over stay
// open. It may be called again.
func (m *Mux) Close() error {
	m.shutdown()
	m.wg.Wait()
	return nil
}

// shutdown starts what Close waits for.
func (m *Mux) shutdown() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed = true
	close(m.done)
	// An error here means that the port is closed already, which is what is
	// wanted.
	_ = m.ln.Close()
	for _, l := range m.listeners {
		_ = l.Close() // never fails
	}
	for c := range m.owned {
		_ = c.Close() // its goroutine is going to notice
	}
}

func (m *Mux) acceptLoop() error {
	var backoff time.Duration
	for {
		nc, err := m.ln.Accept()
		if err == nil {
			backoff = 0
			m.admit(nc)
			continue
		}
		select {
		case <-m.done:
			return nil
		default:
		}
		if !passing(err) {
			return fmt.Errorf("accept on %s: %w", m.ln.Addr(), err)
		}
		m.count.acceptErrors.Add(1)
		backoff = min(max(2*backoff, acceptBackoffMin), acceptBackoffMax)
		wait := time.NewTimer(backoff)
		select {
		case <-wait.C:
		case <-m.done:
			wait.Stop()
			return nil
		}
	}
}

// passing tells whether accept may work again later. Lack of descriptors,
// buffers or memory passes, and on Linux accept also reports network errors of
// the connection that it would have returned. Only errors that say that there
// is no listening socket do not pass.
func passing(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EBADF, syscall.EINVAL, syscall.ENOTSOCK, syscall.EFAULT:
		return false
	}
	return true
}

// admit starts the routing of a new connection, or closes it.
func (m *Mux) admit(nc net.Conn) {
	m.count.accepted.Add(1)
	c := &conn{Conn: nc, open: &m.count.open}
	// Somewhat more than MaxConns may come as far as the handshake, so that those
	// that are too many can be told why.
	if m.count.open.Add(1) > int64(m.opts.MaxConns+m.opts.MaxHandshakes) {
		m.reject(c, ReasonConnLimit, nil)
		return
	}
	if reason := m.enter(c); reason != "" {
		m.reject(c, reason, nil)
		return
	}
	go m.handle(c)
}

// enter takes c among the connections being routed, or says why not. A peer
// that sends nothing takes no handshake slot, and one address does not take
// all places.
func (m *Mux) enter(c *conn) Reason {
	m.mu.Lock()
	defer m.mu.Unlock()
	host := hostOf(c)
	switch {
	case m.closed:
		return ReasonShutdown
	case m.pending >= m.opts.MaxPending:
		return ReasonHandshakeLimit
	case m.addresses[host] >= m.opts.MaxPerAddress:
		return ReasonAddressLimit
	}
	m.pending++
	m.addresses[host]++
	m.owned[c] = struct{}{}
	m.wg.Add(1)
	return ""
}

// routed ends what enter began.
func (m *Mux) routed(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending--
	lower(m.addresses, hostOf(c))
}

// hold counts c as one of its identity's connections until it is closed, or
// says that there are enough of them.
func (m *Mux) hold(c *conn, state tls.ConnectionState) bool {
	if m.opts.Identify == nil {
		return true
	}
	name, limit := m.opts.Identify(state)
	if name == "" {
		return true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if limit > 0 && len(m.holders[name]) >= limit {
		return false
	}
	if m.holders[name] == nil {
		m.holders[name] = make(map[*conn]bool)
	}
	m.holders[name][c] = true
	c.onClose = func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if delete(m.holders[name], c); len(m.holders[name]) == 0 {
			delete(m.holders, name)
		}
	}
	return true
}

// End closes the open connections of an identity, as Options.Identify names it,
// and returns how many there were.
func (m *Mux) End(name string) int {
	m.mu.Lock()
	conns := slices.Collect(maps.Keys(m.holders[name]))
	m.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // its reader is going to notice
	}
	return len(conns)
}

// lower takes one off a count and forgets it at 0.
func lower(counts map[string]int, key string) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// hostOf is the remote address without its port.
func hostOf(c *conn) string {
	host, _, err := net.SplitHostPort(c.RemoteAddr().String())
	if err != nil {
		return c.RemoteAddr().String()
	}
	return host
}

// disown ends the Mux's ownership of c.
func (m *Mux) disown(c *conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.owned, c)
}

// reject counts and closes a connection.
func (m *Mux) reject(c *conn, reason Reason, err error) {
	select {
	case <-m.done:
		// Whatever the connection ended with, this is why.
		reason = ReasonShutdown
	default:
	}
	m.count.rejected[reason].Add(1)
	if m.opts.OnReject != nil {
		m.opts.OnReject(Rejection{Remote: c.RemoteAddr(), Reason: reason, Err: err})
	}
	_ = c.Close() // nothing is owed to this peer
}
