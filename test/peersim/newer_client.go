package peersim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// NewerClientConfig describes a client of the newer generation.
type NewerClientConfig struct {
	Dial Dialer
	Info *manager.ClientInfo
	// Active says when the user last did something; nil: just now. Keepalives
	// report it.
	Active func() time.Time
	// Root adds what the root daemon does: it follows the network and the pods.
	Root   bool
	Rhythm Rhythm
	Limits Limits
}

// NewerClient is a running client of the newer generation. It has no dial stream
// at the manager: agents reach it over streams that it opens to them, which are
// not played here.
type NewerClient struct {
	user
	cfg NewerClientConfig

	amu    sync.Mutex
	agents map[string]*manager.AgentPodInfo // guarded by amu; by session id
}

// StartNewerClient starts a client. It ends with ctx, Close or Kill.
func StartNewerClient(ctx context.Context, cfg NewerClientConfig) *NewerClient {
	c := &NewerClient{cfg: cfg, user: user{peer: newPeer(ctx, cfg.Rhythm.or(Rhythm{
		Remain: 5 * time.Second, Retry: 5 * time.Second, Call: 15 * time.Second, Depart: 3 * time.Second, Backoff: 100 * time.Millisecond,
	}), cfg.Limits)}}
	c.start(c.run)
	return c
}

func (c *NewerClient) run() {
	var s *manager.SessionInfo
	for {
		next := c.life(s)
		if c.ctx.Err() != nil {
			return
		}
		if s = next; s == nil && !c.pause(c.rhythm.Retry) {
			return
		}
	}
}

// life is one connection. It returns the session to go on with over the next
// one, nil for a new one.
func (c *NewerClient) life(old *manager.SessionInfo) *manager.SessionInfo {
	conn, release, err := c.cfg.Dial(c.ctx)
	if err != nil {
		c.add(Event{Kind: Failed, Subject: "dial", Err: err})
		c.pause(c.rhythm.Retry)
		return old
	}
	defer release()
	m := managersvc.NewManagerClient(conn)
	s, err := c.connect(m, old)
	if err != nil {
		if c.ctx.Err() == nil {
			c.add(Event{Kind: Failed, Subject: "connect", Err: err})
		}
		if old != nil && code(err) != codes.NotFound {
			c.pause(c.rhythm.Retry)
			return old
		}
		c.enter(nil, nil)
		return nil
	}
	err = c.keep(s, m)
	if c.ctx.Err() != nil {
		c.enter(nil, nil)
		c.add(Event{Kind: Ended, Session: s.GetSessionId()})
		c.depart(m, s)
		return nil
	}
	c.add(Event{Kind: Broken, Session: s.GetSessionId(), Subject: "Remain", Err: err})
	return s
}

// connect begins a session, or tells the manager all about the one that the
// client has.
func (c *NewerClient) connect(m managersvc.ManagerClient, s *manager.SessionInfo) (*manager.SessionInfo, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.rhythm.Call)
	defer cancel()
	if s != nil {
		_, err := m.ReconnectClient(ctx, &manager.ReconnectClientRequest{Session: s, Client: c.cfg.Info, Intercepts: c.Intercepts()})
		c.add(Event{Kind: Reconnected, Session: s.GetSessionId(), Err: err})
		if err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.manager = m
		c.mu.Unlock()
		return s, nil
	}
	if err := checkVersion(ctx, m); err != nil {
		return nil, err
	}
	s, err := m.ArriveAsClient(ctx, c.cfg.Info)
	if err != nil {
		return nil, err
	}
	c.add(Event{Kind: Arrived, Session: s.GetSessionId()})
	c.enter(s, m)
	return s, learn(ctx, m, s)
}

// keep keeps a session until a keepalive fails.
func (c *NewerClient) keep(s *manager.SessionInfo, m managersvc.ManagerClient) error {
	ctx, cancel := context.WithCancel(c.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	c.follow(ctx, &wg, s, m)
	for pause(ctx, c.rhythm.Remain) {
		active := time.Now()
		if c.cfg.Active != nil {
			active = c.cfg.Active()
		}
		rctx, done := context.WithTimeout(ctx, c.rhythm.Call)
		_, err := m.Remain(rctx, &manager.RemainRequest{Session: s, LastActivity: timestamppb.New(active)})
		done()
		if ctx.Err() != nil {
			break
		}
		c.add(Event{Kind: Remained, Session: s.GetSessionId(), Err: err})
		if err != nil {
			return err
		}
	}
	return nil
}

// follow opens the watches of a session, and again when they break.
func (c *NewerClient) follow(ctx context.Context, wg *sync.WaitGroup, s *manager.SessionInfo, m managersvc.ManagerClient) {
	watch := func(rpc func() string, run func(opened func()) error) {
		wg.Go(func() {
			wait := c.rhythm.Backoff
			for {
				err := run(func() { wait = c.rhythm.Backoff })
				if ctx.Err() != nil {
					return
				}
				c.add(Event{Kind: Broken, Session: s.GetSessionId(), Subject: rpc(), Err: err})
				if code(err) == codes.Unimplemented {
					c.add(Event{Kind: Dead, Session: s.GetSessionId(), Subject: rpc()})
					return
				}
				if !pause(ctx, wait) {
					return
				}
				wait = min(2*wait, longBackoff)
			}
		})
	}
	intercepts := &interceptWatch{session: s, manager: m}
	ready := false
	watch(intercepts.rpc, func(opened func()) error {
		return intercepts.run(ctx, func(list []*manager.InterceptInfo) error {
			opened()
			c.know(s, list)
			if !ready {
				ready = true
				c.add(Event{Kind: Ready, Session: s.GetSessionId()})
			}
			return nil
		})
	})
	if !c.cfg.Root {
		return
	}
	pods := &podWatch{session: s, manager: m, namespaces: []string{c.cfg.Info.GetNamespace()}}
	watch(pods.rpc, func(opened func()) error {
		return pods.run(ctx, func(known map[string]*manager.AgentPodInfo) error {
			opened()
			c.amu.Lock()
			c.agents = known
			c.amu.Unlock()
			c.add(Event{Kind: Pods, Session: s.GetSessionId(), Subject: podSummary(sorted(known))})
			return nil
		})
	})
	watch(func() string { return "WatchClusterInfo" }, func(opened func()) error {
		stream, err := m.WatchClusterInfo(ctx, s)
		return receive(stream, err, func(*manager.ClusterInfo) error {
			opened()
			c.add(Event{Kind: Network, Session: s.GetSessionId()})
			return nil
		})
	})
}

// Agents lists the pods that the client knows, by the agents' sessions.
func (c *NewerClient) Agents() []*manager.AgentPodInfo {
	c.amu.Lock()
	defer c.amu.Unlock()
	return sorted(c.agents)
}

// podSummary lists pods, those that the client intercepts with a "*".
func podSummary(pods []*manager.AgentPodInfo) string {
	out := make([]string, len(pods))
	for i, p := range pods {
		out[i] = p.GetPodName()
		if p.GetIntercepted() {
			out[i] += "*"
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// podWatch follows pods with the newest rpc that the manager serves.
type podWatch struct {
	session    *manager.SessionInfo
	manager    managersvc.ManagerClient
	namespaces []string
	// form is 0 for namespaces, 1 for changes, 2 for snapshots.
	form int
}

func (w *podWatch) rpc() string {
	return [...]string{"WatchAgentPodsInNamespacesDelta", "WatchAgentPodsDelta", "WatchAgentPods"}[w.form]
}

// run gives a new map of all pods to take until the stream ends.
func (w *podWatch) run(ctx context.Context, take func(map[string]*manager.AgentPodInfo) error) error {
	known := make(map[string]*manager.AgentPodInfo)
	change := func(d *manager.AgentPodInfoDelta) error {
		next := make(map[string]*manager.AgentPodInfo, len(known)+len(d.GetUpserts()))
		for id, p := range known {
			next[id] = p
		}
		for id, p := range d.GetUpserts() {
			next[id] = p
		}
		for _, id := range d.GetRemovals() {
			delete(next, id)
		}
		known = next
		return take(next)
	}
	for ; w.form < 2; w.form++ {
		var err error
		if w.form == 0 {
			stream, serr := w.manager.WatchAgentPodsInNamespacesDelta(ctx, &manager.AgentsRequest{Session: w.session, Namespaces: w.namespaces})
			err = receive(stream, serr, change)
		} else {
			stream, serr := w.manager.WatchAgentPodsDelta(ctx, w.session)
			err = receive(stream, serr, change)
		}
		if code(err) != codes.Unimplemented {
			return err
		}
	}
	stream, err := w.manager.WatchAgentPods(ctx, w.session)
	return receive(stream, err, func(snap *manager.AgentPodInfoSnapshot) error {
		all := make(map[string]*manager.AgentPodInfo, len(snap.GetAgents()))
		for i, p := range snap.GetAgents() {
			all[fmt.Sprintf("%06d", i)] = p // a snapshot has no ids
		}
		return take(all)
	})
}
