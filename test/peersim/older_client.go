package peersim

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// OlderClientConfig describes a client of the older generation.
type OlderClientConfig struct {
	Dial Dialer
	Info *manager.ClientInfo
	// Target is what dial requests reach; nil: an echo.
	Target Target
	// Root adds what the root daemon does: it follows the network and the pods.
	Root   bool
	Rhythm Rhythm
	Limits Limits
}

// OlderClient is a running client of the older generation.
type OlderClient struct {
	user
	cfg OlderClientConfig

	// cached is the session that a file of the user's remembers; only the run
	// goroutine touches it.
	cached *manager.SessionInfo
}

// StartOlderClient starts a client. It ends with ctx, Close or Kill.
func StartOlderClient(ctx context.Context, cfg OlderClientConfig) *OlderClient {
	c := &OlderClient{cfg: cfg, user: user{peer: newPeer(ctx, cfg.Rhythm.or(Rhythm{
		Remain: 5 * time.Second, Retry: 5 * time.Second, Call: 15 * time.Second, Depart: 3 * time.Second, Backoff: 100 * time.Millisecond,
	}), cfg.Limits)}}
	c.start(func() {
		for {
			ended := c.life()
			if c.ctx.Err() != nil {
				return
			}
			// A session that ended is followed by a fresh connect at once.
			if !ended && !c.pause(c.rhythm.Retry) {
				return
			}
		}
	})
	return c
}

// life is one connection with one session; ended says that there was one.
func (c *OlderClient) life() (ended bool) {
	conn, release, err := c.cfg.Dial(c.ctx)
	if err != nil {
		c.add(Event{Kind: Failed, Subject: "dial", Err: err})
		return false
	}
	defer release()
	m := managersvc.NewManagerClient(conn)
	s, err := c.connect(m)
	if err != nil {
		if c.ctx.Err() == nil {
			c.add(Event{Kind: Failed, Subject: "connect", Err: err})
		}
		return false
	}
	c.enter(s, m)
	c.cached = s
	err = c.keep(s, m)
	c.enter(nil, nil)
	c.add(Event{Kind: Dropped, Session: s.GetSessionId()})
	c.add(Event{Kind: Ended, Session: s.GetSessionId(), Err: err})
	if c.depart(m, s) {
		c.cached = nil
	}
	return true
}

// connect begins a session, or goes on with the one that is remembered.
func (c *OlderClient) connect(m managersvc.ManagerClient) (*manager.SessionInfo, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.rhythm.Call)
	defer cancel()
	if err := checkVersion(ctx, m); err != nil {
		return nil, err
	}
	s := c.cached
	if s != nil {
		_, err := m.Remain(ctx, &manager.RemainRequest{Session: s})
		if err != nil {
			s = nil
		}
	}
	if s != nil {
		c.add(Event{Kind: Reused, Session: s.GetSessionId()})
	} else {
		var err error
		if s, err = m.ArriveAsClient(ctx, c.cfg.Info); err != nil {
			return nil, err
		}
		c.add(Event{Kind: Arrived, Session: s.GetSessionId()})
	}
	return s, learn(ctx, m, s)
}

// keep keeps a session until a keepalive says that it is over.
func (c *OlderClient) keep(s *manager.SessionInfo, m managersvc.ManagerClient) error {
	ctx, cancel := context.WithCancel(c.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c.follow(ctx, &wg, s, m)
	for pause(ctx, c.rhythm.Remain) {
		rctx, done := context.WithTimeout(ctx, c.rhythm.Call)
		_, err := m.Remain(rctx, &manager.RemainRequest{Session: s})
		done()
		if ctx.Err() != nil {
			break
		}
		c.add(Event{Kind: Remained, Session: s.GetSessionId(), Err: err})
		switch code(err) {
		case codes.NotFound, codes.Unavailable:
			return err
		}
	}
	return nil
}

// follow opens the watches of a session.
func (c *OlderClient) follow(ctx context.Context, wg *sync.WaitGroup, s *manager.SessionInfo, m managersvc.ManagerClient) {
	// watch opens a stream again and again, for as long as again says so.
	watch := func(rpc string, longest time.Duration, again func(error) bool, run func(opened func()) error) {
		wg.Go(func() {
			wait := c.rhythm.Backoff
			for {
				err := run(func() { wait = c.rhythm.Backoff })
				if ctx.Err() != nil {
					return
				}
				c.add(Event{Kind: Broken, Session: s.GetSessionId(), Subject: rpc, Err: err})
				if !again(err) {
					c.add(Event{Kind: Dead, Session: s.GetSessionId(), Subject: rpc})
					return
				}
				if !pause(ctx, wait) {
					return
				}
				wait = min(2*wait, longest)
			}
		})
	}
	always := func(error) bool { return true }
	ready := false
	watch("WatchIntercepts", shortBackoff, always, func(opened func()) error {
		stream, err := m.WatchIntercepts(ctx, s)
		err = receive(stream, err, func(snap *manager.InterceptInfoSnapshot) error {
			opened()
			c.know(s, snap.GetIntercepts())
			if !ready {
				ready = true
				c.add(Event{Kind: Ready, Session: s.GetSessionId()})
			}
			return nil
		})
		if ctx.Err() == nil {
			c.know(s, nil) // the stock client takes the end for an empty list
		}
		return err
	})
	watch("WatchDial", shortBackoff, always, func(opened func()) error {
		stream, err := m.WatchDial(ctx, s)
		return receive(stream, err, func(req *manager.DialRequest) error {
			opened()
			c.answer(ctx, wg, m, s.GetSessionId(), req, c.cfg.Target)
			return nil
		})
	})
	if !c.cfg.Root {
		return
	}
	watch("WatchAgentPods", longBackoff, func(err error) bool { return code(err) == codes.Unavailable }, func(opened func()) error {
		stream, err := m.WatchAgentPods(ctx, s)
		return receive(stream, err, func(snap *manager.AgentPodInfoSnapshot) error {
			opened()
			c.add(Event{Kind: Pods, Session: s.GetSessionId(), Subject: podSummary(snap.GetAgents())})
			return nil
		})
	})
	watch("WatchClusterInfo", longBackoff, func(err error) bool { return code(err) != codes.Canceled }, func(opened func()) error {
		stream, err := m.WatchClusterInfo(ctx, s)
		return receive(stream, err, func(*manager.ClusterInfo) error {
			opened()
			c.add(Event{Kind: Network, Session: s.GetSessionId()})
			return nil
		})
	})
}

// LookupDNS asks for a name that ends with a dot.
func (c *OlderClient) LookupDNS(ctx context.Context, name string, qtype uint32) (*manager.DNSResponse, error) {
	m, s, err := c.Manager()
	if err != nil {
		return nil, err
	}
	return m.LookupDNS(ctx, &manager.DNSRequest{Session: s, Name: name, Type: qtype})
}

// DialOut opens the tunnel of an outbound connection.
func (c *OlderClient) DialOut(ctx context.Context, conn Conn) (*Tunnel, error) {
	m, s, err := c.Manager()
	if err != nil {
		return nil, err
	}
	return OpenTunnel(ctx, m, Info{Latency: 2 * time.Second, DialTimeout: 3 * time.Second, ConnID: conn.ID(), Session: s.GetSessionId()}, "")
}
