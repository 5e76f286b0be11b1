package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"trivet/internal/netns"
	"trivet/internal/spawn"
	"trivet/internal/tunfwd"
)

const (
	servers = 3
	// poll is how often a question is repeated until the answer is the wanted
	// one.
	poll = 10 * time.Millisecond
	// askTimeout bounds such a question.
	askTimeout = 2 * time.Second
)

// call is one request, encoded.
type call struct {
	method string
	body   []byte
	md     metadata.MD
}

// dialect is how a kind of store is spoken to.
type dialect interface {
	put(key string, value []byte) call
	get(key string, linearizable bool) call
	// leads says whether the server at the other end leads.
	leads(ctx context.Context, cc *grpc.ClientConn) (bool, error)
	// elected finds in a server's log when it last became the leader.
	elected(log string) (time.Time, bool)
}

// store is three server processes and the ways to them.
type store struct {
	dialect
	// name is that in the results, what else is to be known about it.
	name, what string
	procs      []*proc
	addresses  []string
	creds      credentials.TransportCredentials
	site       *site
	// control is a connection per server for questions beside the load.
	control []*grpc.ClientConn
}

// site is where the processes of a store run: on this host's loopback, or each
// in a network namespace of its own.
type site struct {
	dir   string
	spawn *spawn.Spawner
	hosts []string
	// spaces are the namespaces of the hosts; nil: here.
	spaces []*netns.Handle
	net    *tunfwd.Network
	// from is where clients dial from, nil: here.
	from *netns.Handle
}

// hostName is the name of a server's host in the network.
func hostName(i int) string { return fmt.Sprintf("server-%d", i+1) }

const clientHost = "clients"

// newSite prepares a place for three processes with their files in dir. apart
// gives each a namespace.
func newSite(dir string, apart bool) (*site, error) {
	s := &site{dir: dir, spawn: spawn.New()}
	if apart {
		s.net = tunfwd.New(tunfwd.Options{})
	}
	for i := range servers {
		if err := s.add(i); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	if apart {
		h, err := s.net.Add(clientHost)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.from = h.NS
	}
	return s, nil
}

func (s *site) add(i int) error {
	host, ns := "127.0.0.1", (*netns.Handle)(nil)
	if s.net != nil {
		h, err := s.net.Add(hostName(i))
		if err != nil {
			return err
		}
		host, ns = h.Addr.String(), h.NS
	}
	s.hosts, s.spaces = append(s.hosts, host), append(s.spaces, ns)
	return nil
}

// listen chooses n addresses per server that nobody uses right now.
func (s *site) listen(n int) ([][]string, error) {
	out := make([][]string, servers)
	for i := range out {
		for j := range n {
			if s.net != nil {
				// A namespace of its own: every port is free.
				out[i] = append(out[i], net.JoinHostPort(s.hosts[i], fmt.Sprint(7400+j)))
				continue
			}
			ln, err := net.Listen("tcp", net.JoinHostPort(s.hosts[i], "0"))
			if err != nil {
				return nil, fmt.Errorf("choose a port: %w", err)
			}
			// Open until all are chosen, so that none is chosen twice.
			defer ln.Close()
			out[i] = append(out[i], ln.Addr().String())
		}
	}
	return out, nil
}

func (s *site) proc(i int, store, exe string, args, env []string) *proc {
	name := fmt.Sprintf("%s-%d", store, i+1)
	return &proc{name: name, log: filepath.Join(s.dir, name+".log"), exe: exe, args: args, env: env, spawn: s.spawn, ns: s.spaces[i]}
}

func (s *site) close() error {
	s.spawn.Close()
	if s.net != nil {
		return s.net.Close()
	}
	return nil
}

// start starts the processes and waits until one of them leads and writes are
// open.
func (st *store) start(ctx context.Context) error {
	for _, p := range st.procs {
		if err := p.start(); err != nil {
			return err
		}
	}
	for i := range st.procs {
		cc, err := st.dial(i)
		if err != nil {
			return err
		}
		st.control = append(st.control, cc)
	}
	return st.whole(ctx)
}

// whole waits until every server takes writes.
func (st *store) whole(ctx context.Context) error {
	for i, p := range st.procs {
		c := st.put("whole", []byte{1})
		err := until(ctx, func() (bool, error) {
			if !p.running() {
				return false, fmt.Errorf("%s has ended; its last words:\n%s", p.name, p.tail())
			}
			return st.invoke(ctx, st.control[i], c, askTimeout) == nil, nil
		})
		if err != nil {
			return fmt.Errorf("wait until %s takes writes: %w", p.name, err)
		}
	}
	return nil
}

// invoke makes one call and does not look at the answer.
func (st *store) invoke(ctx context.Context, cc *grpc.ClientConn, c call, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if c.md != nil {
		ctx = metadata.NewOutgoingContext(ctx, c.md)
	}
	return cc.Invoke(ctx, c.method, &c.body, (*[]byte)(nil))
}

// dial makes a connection to a server. It connects when it is first used, or
// told to, and again by itself on the schedule of trivet's own clients.
func (st *store) dial(i int) (*grpc.ClientConn, error) {
	cc, err := grpc.NewClient("passthrough:///"+st.addresses[i],
		grpc.WithTransportCredentials(st.creds),
		grpc.WithContextDialer(st.site.dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(passthrough{})),
		grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", st.procs[i].name, err)
	}
	return cc, nil
}

func (s *site) dial(ctx context.Context, address string) (net.Conn, error) {
	if s.from == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", address)
	}
	return netns.Dial(ctx, s.from, "tcp", address, nil)
}

// leader waits until one server leads and returns its place.
func (st *store) leader(ctx context.Context) (int, error) {
	at := -1
	err := until(ctx, func() (bool, error) {
		for i, p := range st.procs {
			if !p.running() {
				continue
			}
			actx, cancel := context.WithTimeout(ctx, askTimeout)
			leads, err := st.leads(actx, st.control[i])
			cancel()
			if err == nil && leads {
				at = i
				return true, nil
			}
		}
		return false, nil
	})
	if err != nil {
		return 0, fmt.Errorf("find the leader of %s: %w", st.name, err)
	}
	return at, nil
}

// cpu is the CPU time that all servers have used since they were started.
func (st *store) cpu() (time.Duration, error) {
	var sum time.Duration
	for _, p := range st.procs {
		d, err := p.cpu()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// close ends the processes; their files stay.
func (st *store) close() error {
	var errs []error
	for _, cc := range st.control {
		errs = append(errs, cc.Close())
	}
	// Together: the last of three could not hand leadership over.
	done := make(chan error, len(st.procs))
	for _, p := range st.procs {
		go func() { done <- p.stop() }()
	}
	for range st.procs {
		errs = append(errs, <-done)
	}
	return errors.Join(append(errs, st.site.close())...)
}

// until repeats a question until the answer is yes, an error, or ctx ends.
func until(ctx context.Context, ask func() (bool, error)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
