package tunfwd

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"trivet/internal/netns"
)

// Defaults of Options.
const (
	// DefaultMTU is that of Ethernet.
	DefaultMTU = 1500
	// DefaultQueue holds a second of 64 Mbit/s.
	DefaultQueue = 8 << 20
)

// DefaultSubnet is where hosts live. Namespaces are closed worlds, so networks
// of several processes do not get in each other's way.
var DefaultSubnet = netip.MustParsePrefix("10.78.0.0/24")

// Options of a Network. The zero value is usable.
type Options struct {
	// Subnet gives the hosts their addresses, from .1 on.
	Subnet netip.Prefix
	// MTU of the devices, bytes.
	MTU int
	// Queue bounds what waits on one directed pair, in bytes.
	Queue int
	// Seed of loss and jitter. Equal seeds and equal packets give equal fates.
	Seed uint64
}

// Host is one namespace of a Network.
type Host struct {
	Name string
	// Addr is its address in the network.
	Addr netip.Addr
	// NS belongs to the Network: it is closed with it.
	NS *netns.Handle

	tun   *os.File
	paths map[netip.Addr]*path // by destination; guarded by Network.mu
}

// Network carries packets between its hosts. Make it with New, end it with
// Close.
type Network struct {
	opts  Options
	stop  chan struct{}
	wg    sync.WaitGroup
	stray atomic.Uint64

	mu     sync.RWMutex
	hosts  []*Host        // guarded by mu
	paths  map[Pair]*path // guarded by mu
	next   netip.Addr     // guarded by mu
	closed bool           // guarded by mu
}

// New makes a network without hosts.
func New(o Options) *Network {
	if !o.Subnet.IsValid() {
		o.Subnet = DefaultSubnet
	}
	if o.MTU == 0 {
		o.MTU = DefaultMTU
	}
	if o.Queue == 0 {
		o.Queue = DefaultQueue
	}
	return &Network{opts: o, stop: make(chan struct{}), paths: make(map[Pair]*path), next: o.Subnet.Masked().Addr().Next()}
}

// Add makes a namespace with the next address of the subnet and joins it to
// all hosts that are there. Names are unique.
func (n *Network) Add(name string) (*Host, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, fmt.Errorf("add host %s: %w", name, os.ErrClosed)
	}
	for _, h := range n.hosts {
		if h.Name == name {
			return nil, fmt.Errorf("add host %s: there is one of that name", name)
		}
	}
	if !n.opts.Subnet.Contains(n.next) {
		return nil, fmt.Errorf("add host %s: the subnet %v is full", name, n.opts.Subnet)
	}
	ns, err := netns.New()
	if err != nil {
		return nil, fmt.Errorf("add host %s: %w", name, err)
	}
	h := &Host{Name: name, Addr: n.next, NS: ns, paths: make(map[netip.Addr]*path)}
	if h.tun, err = openTUN(ns, netip.PrefixFrom(h.Addr, n.opts.Subnet.Bits()), n.opts.MTU); err != nil {
		return nil, errors.Join(fmt.Errorf("add host %s: %w", name, err), ns.Close())
	}
	n.next = n.next.Next()
	for _, other := range n.hosts {
		n.join(h, other)
		n.join(other, h)
	}
	n.hosts = append(n.hosts, h)
	n.wg.Go(func() { n.read(h) })
	return h, nil
}

// join makes the path from one host to another. n.mu is held.
func (n *Network) join(from, to *Host) {
	p := &path{
		out: to.tun, bound: n.opts.Queue, wake: make(chan struct{}, 1), stop: n.stop,
		rnd: rand.New(rand.NewPCG(n.opts.Seed, uint64(len(n.paths)))),
	}
	p.rule.Store(new(Rule))
	n.paths[Pair{from.Name, to.Name}] = p
	from.paths[to.Addr] = p
	n.wg.Go(p.deliver)
}

// Set replaces the rule of one direction.
func (n *Network) Set(from, to string, r Rule) error {
	if err := r.Validate(); err != nil {
		return fmt.Errorf("rule for %s>%s: %w", from, to, err)
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	p := n.paths[Pair{from, to}]
	if p == nil {
		return fmt.Errorf("rule for %s>%s: there is no such pair", from, to)
	}
	p.rule.Store(&r)
	return nil
}

// SetBoth replaces the rules of both directions.
func (n *Network) SetBoth(a, b string, r Rule) error {
	return errors.Join(n.Set(a, b, r), n.Set(b, a, r))
}

// Heal takes all rules away.
func (n *Network) Heal() {
	n.mu.RLock()
	defer n.mu.RUnlock()
	for _, p := range n.paths {
		p.rule.Store(new(Rule))
	}
}

// Rules returns the rules that do something.
func (n *Network) Rules() map[Pair]Rule {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make(map[Pair]Rule)
	for pair, p := range n.paths {
		if r := *p.rule.Load(); r != (Rule{}) {
			out[pair] = r
		}
	}
	return out
}

// Counters returns the counters of every pair.
func (n *Network) Counters() map[Pair]Counters {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make(map[Pair]Counters, len(n.paths))
	for pair, p := range n.paths {
		out[pair] = p.counters()
	}
	return out
}

// Stray is the number of packets for nobody here: broadcasts, other protocols,
// addresses without a host.
func (n *Network) Stray() uint64 { return n.stray.Load() }

// Close ends the carrying and gives the namespaces up. Processes in them stay,
// without a network.
func (n *Network) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	hosts := n.hosts
	n.mu.Unlock()
	close(n.stop)
	var errs []error
	for _, h := range hosts {
		errs = append(errs, h.tun.Close())
	}
	n.wg.Wait()
	for _, h := range hosts {
		errs = append(errs, h.NS.Close())
	}
	return errors.Join(errs...)
}

// read takes packets from a host's device until it is closed.
func (n *Network) read(h *Host) {
	buf := make([]byte, n.opts.MTU+slack)
	for {
		size, err := h.tun.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) || n.stopped() {
				return
			}
			// The device is down for a moment, or the packet was larger than
			// the MTU says; neither ends the host.
			n.stray.Add(1)
			continue
		}
		packet := buf[:size]
		to, ok := destination(packet)
		if !ok {
			n.stray.Add(1)
			continue
		}
		n.mu.RLock()
		p := h.paths[to]
		n.mu.RUnlock()
		if p == nil {
			n.stray.Add(1)
			continue
		}
		p.take(packet)
	}
}

func (n *Network) stopped() bool {
	select {
	case <-n.stop:
		return true
	default:
		return false
	}
}

// destination reads the address that an IPv4 packet is for.
func destination(packet []byte) (netip.Addr, bool) {
	const header, at = 20, 16
	if len(packet) < header || packet[0]>>4 != 4 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(packet[at : at+4])), true
}
