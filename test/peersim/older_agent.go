package peersim

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// OlderAgentConfig describes an agent of the older generation.
type OlderAgentConfig struct {
	Dial Dialer
	// Info is what the agent arrives with. Older agents know neither their pod's
	// uid nor its containers nor a kind.
	Info *manager.AgentInfo
	// Containers are the names of the pod's containers; none: any will do.
	Containers []string
	// Environment and MountPoint go into every approval.
	Environment map[string]string
	MountPoint  string
	// Resolve answers names; nil: there is no such name.
	Resolve func(*manager.DNSRequest) *manager.DNSResponse
	// Target is what outbound dial requests reach; nil: an echo.
	Target Target
	Rhythm Rhythm
	Limits Limits
}

// OlderAgent is a running agent of the older generation.
type OlderAgent struct {
	*peer
	cfg OlderAgentConfig

	mu      sync.Mutex
	session *manager.SessionInfo     // guarded by mu; nil while there is none
	manager managersvc.ManagerClient // guarded by mu; of the session
	served  []*manager.InterceptInfo // guarded by mu
}

// StartOlderAgent starts an agent. It ends with ctx, Close or Kill.
func StartOlderAgent(ctx context.Context, cfg OlderAgentConfig) *OlderAgent {
	a := &OlderAgent{cfg: cfg, peer: newPeer(ctx, cfg.Rhythm.or(Rhythm{
		Remain: 5 * time.Second, Retry: 5 * time.Second, Depart: time.Second,
	}), cfg.Limits)}
	a.start(a.run)
	return a
}

func (a *OlderAgent) run() {
	tick := time.NewTicker(a.rhythm.Retry)
	defer tick.Stop()
	for {
		a.life()
		select {
		case <-tick.C: // one that came during the session is no pause
		default:
		}
		select {
		case <-tick.C:
		case <-a.ctx.Done():
			return
		}
	}
}

// life is one session, or an attempt at one.
func (a *OlderAgent) life() {
	conn, release, err := a.cfg.Dial(a.ctx)
	if err != nil {
		a.add(Event{Kind: Failed, Subject: "dial", Err: err})
		return
	}
	defer release()
	m := managersvc.NewManagerClient(conn)
	if err := checkVersion(a.ctx, m); err != nil {
		a.add(Event{Kind: Failed, Subject: "Version", Err: err})
		return
	}
	s, err := m.ArriveAsAgent(a.ctx, a.cfg.Info)
	if err != nil {
		a.add(Event{Kind: Failed, Subject: "ArriveAsAgent", Err: err})
		return
	}
	a.add(Event{Kind: Arrived, Session: s.GetSessionId()})
	a.enter(s, m)
	err = a.keep(s, m)
	a.enter(nil, nil)
	a.add(Event{Kind: Dropped, Session: s.GetSessionId()})
	if a.ctx.Err() != nil {
		err = nil
	}
	a.add(Event{Kind: Ended, Session: s.GetSessionId(), Err: err})
	a.depart(m, s)
}

func (a *OlderAgent) enter(s *manager.SessionInfo, m managersvc.ManagerClient) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.session, a.manager, a.served = s, m, nil
}

// keep keeps a session until the first error of anything in it.
func (a *OlderAgent) keep(s *manager.SessionInfo, m managersvc.ManagerClient) error {
	ctx, end := context.WithCancelCause(a.ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end(nil)
	// watch runs a stream; a clean end of it only leaves its function dead.
	watch := func(rpc string, run func() error) {
		wg.Go(func() {
			err := run()
			if ctx.Err() != nil {
				return
			}
			a.add(Event{Kind: Broken, Session: s.GetSessionId(), Subject: rpc, Err: err})
			if err == nil {
				a.add(Event{Kind: Dead, Session: s.GetSessionId(), Subject: rpc})
				return
			}
			end(err)
		})
	}
	watch("WatchLookupDNS", func() error { return a.names(ctx, s, m) })
	watch("WatchDial", func() error {
		stream, err := m.WatchDial(ctx, s)
		return receive(stream, err, func(req *manager.DialRequest) error {
			a.answer(ctx, &wg, m, s.GetSessionId(), req, a.cfg.Target)
			return nil
		})
	})
	watch("WatchLogLevel", func() error {
		stream, err := m.WatchLogLevel(ctx, new(emptypb.Empty))
		return receive(stream, err, func(req *manager.LogLevelRequest) error {
			a.add(Event{Kind: Level, Session: s.GetSessionId(), Subject: req.GetLogLevel()})
			return nil
		})
	})
	watch("WatchIntercepts", func() error {
		if err := a.intercepts(ctx, s, m); err != nil {
			return err
		}
		return io.EOF // the one stream that must not end
	})
	for pause(ctx, a.rhythm.Remain) {
		_, err := m.Remain(ctx, &manager.RemainRequest{Session: s})
		if ctx.Err() != nil {
			break
		}
		a.add(Event{Kind: Remained, Session: s.GetSessionId(), Err: err})
		if err != nil {
			end(err)
		}
	}
	return context.Cause(ctx)
}

func (a *OlderAgent) names(ctx context.Context, s *manager.SessionInfo, m managersvc.ManagerClient) error {
	stream, err := m.WatchLookupDNS(ctx, s)
	return receive(stream, err, func(req *manager.DNSRequest) error {
		answer := &manager.DNSAgentResponse{Session: s, Request: req}
		if a.cfg.Resolve != nil {
			answer.Response = a.cfg.Resolve(req)
		}
		// A failure is only noted.
		_, err := m.AgentLookupDNSResponse(ctx, answer)
		a.add(Event{Kind: Resolved, Session: s.GetSessionId(), Subject: req.GetName(), Err: err})
		return nil
	})
}

func (a *OlderAgent) intercepts(ctx context.Context, s *manager.SessionInfo, m managersvc.ManagerClient) error {
	r := newReviewer(a.cfg.Containers)
	ready := false
	stream, err := m.WatchIntercepts(ctx, s)
	return receive(stream, err, func(snap *manager.InterceptInfoSnapshot) error {
		verdicts := r.handle(snap.GetIntercepts())
		a.mu.Lock()
		a.served = r.served(snap.GetIntercepts())
		a.mu.Unlock()
		a.add(Event{Kind: Snapshot, Session: s.GetSessionId(), Subject: summary(snap.GetIntercepts())})
		if !ready {
			ready = true
			a.add(Event{Kind: Ready, Session: s.GetSessionId()})
		}
		return review(ctx, a.peer, m, s, verdicts, func(v *manager.ReviewInterceptRequest) {
			v.PodIp, v.MountPoint, v.Environment = a.cfg.Info.GetPodIp(), a.cfg.MountPoint, a.cfg.Environment
		})
	})
}

func newReviewer(containers []string) *reviewer {
	r := &reviewer{containers: make(map[string]bool, len(containers))}
	for _, c := range containers {
		r.containers[c] = true
	}
	return r
}

// review sends verdicts; that an intercept is gone by then is no error.
func review(ctx context.Context, p *peer, m managersvc.ManagerClient, s *manager.SessionInfo, verdicts []*manager.ReviewInterceptRequest,
	fill func(*manager.ReviewInterceptRequest),
) error {
	for _, v := range verdicts {
		v.Session = s
		if v.GetDisposition() == manager.InterceptDispositionType_ACTIVE {
			fill(v)
		}
		_, err := m.ReviewIntercept(ctx, v)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.add(Event{Kind: Reviewed, Session: s.GetSessionId(), Subject: v.GetId(), Err: err})
		if err != nil && code(err) != codes.NotFound {
			return err
		}
	}
	return nil
}

// summary lists intercepts with their dispositions, as "id=STATE id=STATE".
func summary(list []*manager.InterceptInfo) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.GetId() + "=" + v.GetDisposition().String()
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Session is the agent's session, nil while it has none.
func (a *OlderAgent) Session() *manager.SessionInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.session
}

// Serves lists the intercepts that the agent serves.
func (a *OlderAgent) Serves() []*manager.InterceptInfo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.served)
}

// ErrNotServed: the agent serves no such intercept, so that the visitor reaches
// the app.
var ErrNotServed = errors.New("the agent does not serve this intercept")

// Visit opens the tunnel of a visitor's connection to an intercepted port. Data
// may be sent at once; DialOK or DialReject come back.
func (a *OlderAgent) Visit(ctx context.Context, intercept string, from Conn) (*Tunnel, error) {
	a.mu.Lock()
	s, m := a.session, a.manager
	var spec *manager.InterceptSpec
	var client string
	for _, i := range a.served {
		if i.GetId() == intercept {
			spec, client = i.GetSpec(), i.GetClientSession().GetSessionId()
		}
	}
	a.mu.Unlock()
	if s == nil || spec == nil {
		return nil, ErrNotServed
	}
	return OpenTunnel(ctx, m, Info{
		Latency: time.Duration(spec.GetRoundtripLatency()), DialTimeout: time.Duration(spec.GetDialTimeout()),
		ConnID: from.ID(), Session: s.GetSessionId(),
	}, client)
}

// Report sends the byte counts of a visit that is over, as agents do, without
// caring for the answer beyond a second.
func (a *OlderAgent) Report(client string, in, out uint64) error {
	a.mu.Lock()
	m := a.manager
	a.mu.Unlock()
	if m == nil {
		return ErrNotServed
	}
	ctx, cancel := context.WithTimeout(a.ctx, time.Second)
	defer cancel()
	_, err := m.ReportMetrics(ctx, &manager.TunnelMetrics{ClientSessionId: client, IngressBytes: in, EgressBytes: out})
	return err
}

// sorted lists the values of a map by key.
func sorted[V any](m map[string]V) []V {
	out := make([]V, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}
