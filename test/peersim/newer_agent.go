package peersim

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// NewerAgentConfig describes an agent of the newer generation.
type NewerAgentConfig struct {
	Dial Dialer
	// Info is what the agent arrives with: its pod's uid and, by container, the
	// environments, too.
	Info   *manager.AgentInfo
	Rhythm Rhythm
	Limits Limits
}

// NewerAgent is a running agent of the newer generation. It opens no tunnels at
// the manager: visitors reach the client over streams that the client opens to
// the agent, which are not played here.
type NewerAgent struct {
	*peer
	cfg NewerAgentConfig

	mu      sync.Mutex
	session *manager.SessionInfo     // guarded by mu
	served  []*manager.InterceptInfo // guarded by mu
}

// StartNewerAgent starts an agent. It ends with ctx, Close or Kill.
func StartNewerAgent(ctx context.Context, cfg NewerAgentConfig) *NewerAgent {
	a := &NewerAgent{cfg: cfg, peer: newPeer(ctx, cfg.Rhythm.or(Rhythm{
		Remain: 60 * time.Second, Retry: 5 * time.Second, Depart: time.Second,
	}), cfg.Limits)}
	a.start(a.run)
	return a
}

func (a *NewerAgent) run() {
	conn, release, err := a.cfg.Dial(a.ctx)
	if err != nil {
		a.add(Event{Kind: Failed, Subject: "dial", Err: err})
		return
	}
	defer release()
	m := managersvc.NewManagerClient(conn)
	s := a.arrive(m)
	if s == nil {
		return
	}
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { a.watch(m, s) })
	for a.pause(a.rhythm.Remain) {
		// What is answered does not matter.
		_, err := m.Remain(a.ctx, &manager.RemainRequest{Session: s})
		if a.ctx.Err() == nil {
			a.add(Event{Kind: Remained, Session: s.GetSessionId(), Err: err})
		}
	}
	wg.Wait()
	a.add(Event{Kind: Ended, Session: s.GetSessionId()})
	a.depart(m, s)
}

// arrive tries until it has a session; nil when the peer is to end.
func (a *NewerAgent) arrive(m managersvc.ManagerClient) *manager.SessionInfo {
	for {
		err := checkVersion(a.ctx, m)
		if err == nil {
			var s *manager.SessionInfo
			if s, err = m.ArriveAsAgent(a.ctx, a.cfg.Info); err == nil {
				a.add(Event{Kind: Arrived, Session: s.GetSessionId()})
				return s
			}
		}
		if a.ctx.Err() != nil {
			return nil
		}
		a.add(Event{Kind: Failed, Subject: "ArriveAsAgent", Err: err})
		if !a.pause(a.rhythm.Retry) {
			return nil
		}
	}
}

// watch follows the intercepts; before it opens a broken watch again it calls
// ReconnectAgent.
func (a *NewerAgent) watch(m managersvc.ManagerClient, s *manager.SessionInfo) {
	w := &interceptWatch{session: s, manager: m}
	r := newReviewer(nil)
	ready := false
	for {
		err := w.run(a.ctx, func(list []*manager.InterceptInfo) error {
			verdicts := r.handle(list)
			a.mu.Lock()
			a.served = r.served(list)
			a.mu.Unlock()
			a.add(Event{Kind: Snapshot, Session: s.GetSessionId(), Subject: summary(list)})
			if !ready {
				ready = true
				a.add(Event{Kind: Ready, Session: s.GetSessionId()})
			}
			return review(a.ctx, a.peer, m, s, verdicts, func(v *manager.ReviewInterceptRequest) { v.PodIp = a.cfg.Info.GetPodIp() })
		})
		if a.ctx.Err() != nil {
			return
		}
		a.add(Event{Kind: Broken, Session: s.GetSessionId(), Subject: w.rpc(), Err: err})
		for {
			if !a.pause(a.rhythm.Retry) {
				return
			}
			_, err := m.ReconnectAgent(a.ctx, &manager.ReconnectAgentRequest{Session: s, Agent: a.cfg.Info})
			if a.ctx.Err() != nil {
				return
			}
			a.add(Event{Kind: Reconnected, Session: s.GetSessionId(), Err: err})
			if err == nil {
				break
			}
		}
	}
}

// Session is the agent's session, nil before it has arrived.
func (a *NewerAgent) Session() *manager.SessionInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session
}

// Serves lists the intercepts that the agent serves. It goes on serving them
// while its watch is broken.
func (a *NewerAgent) Serves() []*manager.InterceptInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.served)
}

// interceptWatch follows intercepts in changes, or in snapshots where the
// manager does not serve those.
type interceptWatch struct {
	session   *manager.SessionInfo
	manager   managersvc.ManagerClient
	snapshots bool
}

func (w *interceptWatch) rpc() string {
	if w.snapshots {
		return "WatchIntercepts"
	}
	return "WatchInterceptsDelta"
}

// run gives every list to take until the stream ends.
func (w *interceptWatch) run(ctx context.Context, take func([]*manager.InterceptInfo) error) error {
	if !w.snapshots {
		known := make(map[string]*manager.InterceptInfo)
		stream, err := w.manager.WatchInterceptsDelta(ctx, w.session)
		err = receive(stream, err, func(d *manager.InterceptInfoDelta) error {
			for id, i := range d.GetUpserts() {
				known[id] = i
			}
			for _, id := range d.GetRemovals() {
				delete(known, id)
			}
			return take(sorted(known))
		})
		if code(err) != codes.Unimplemented {
			return err
		}
		w.snapshots = true
	}
	stream, err := w.manager.WatchIntercepts(ctx, w.session)
	return receive(stream, err, func(snap *manager.InterceptInfoSnapshot) error { return take(snap.GetIntercepts()) })
}
