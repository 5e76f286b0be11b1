package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

const (
	// perWorkload is how many intercepts share a workload.
	perWorkload = 10
	// movers is how many calls are under way while the cluster fills.
	movers = 256
	// remainEvery keeps an agent alive, whose session lasts 70 s without.
	remainEvery = 15 * time.Second
	// moveTimeout bounds the filling.
	moveTimeout = 10 * time.Minute
	namespace   = "bench"
	product     = "telepresence"
	version     = "2.30.0"
)

// population is what fills a manager: one node with workloads, an agent for
// each, client sessions, and intercepts of some of them. The agents stay alive
// by their Remains, the clients by the length of their sessions.
type population struct {
	what   string
	t      *trivet
	agents []*manager.SessionInfo
	// nodes and clients are a connection per server in these roles.
	nodes, clients       []*grpc.ClientConn
	sessions, intercepts int
	next                 atomic.Uint64
	cancel               context.CancelFunc
	wg                   sync.WaitGroup
}

// populate fills a manager and returns once everything is there.
func populate(ctx context.Context, t *trivet, o FailoverOptions) (*population, error) {
	start := time.Now()
	p := &population{
		t: t, sessions: o.Sessions, intercepts: o.Intercepts,
		what: fmt.Sprintf("%d sessions, %d intercepts", o.Sessions, o.Intercepts),
	}
	life, cancel := context.WithCancel(ctx)
	p.cancel = cancel
	ctx, done := context.WithTimeout(ctx, moveTimeout)
	defer done()
	if err := p.fill(ctx, life); err != nil {
		return nil, errors.Join(fmt.Errorf("fill the manager: %w", err), p.close())
	}
	fmt.Fprintf(o.Progress, "%s are there after %s\n", p.what, time.Since(start).Round(time.Second))
	return p, nil
}

func (p *population) fill(ctx, life context.Context) error {
	if err := p.t.unlimit(ctx); err != nil {
		return err
	}
	for i := range p.t.procs {
		for _, c := range []struct {
			folder string
			to     *[]*grpc.ClientConn
		}{{bundles.NodesDir, &p.nodes}, {bundles.ClientsDir, &p.clients}} {
			cc, err := p.t.client(i, c.folder)
			if err != nil {
				return err
			}
			*c.to = append(*c.to, cc)
		}
	}
	workloads := (p.intercepts + perWorkload - 1) / perWorkload
	if err := p.report(ctx, life, workloads); err != nil {
		return err
	}
	if p.sessions < workloads {
		return fmt.Errorf("%d sessions are fewer than the %d agents of %d intercepts", p.sessions, workloads, p.intercepts)
	}
	p.agents = make([]*manager.SessionInfo, workloads)
	err := each(ctx, workloads, func(ctx context.Context, i int) error {
		s, err := p.manager(p.nodes).ArriveAsAgent(ctx, &manager.AgentInfo{
			Name: app(i), Namespace: namespace, Kind: "Deployment", PodName: app(i) + "-0", PodUid: uid(i), PodIp: "10.0.0.5",
			Product: product, Version: version, Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: product, Version: version}},
		})
		p.agents[i] = s
		return err
	})
	if err != nil {
		return fmt.Errorf("agents: %w", err)
	}
	p.wg.Go(func() { p.remain(life) })
	owners := make([]*manager.SessionInfo, p.sessions-workloads)
	err = each(ctx, len(owners), func(ctx context.Context, i int) (err error) {
		owners[i], err = p.manager(p.clients).ArriveAsClient(ctx, &manager.ClientInfo{
			Name: fmt.Sprintf("client-%d", i), InstallId: fmt.Sprintf("install-%d", i), Product: product, Version: version, Namespace: namespace,
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("clients: %w", err)
	}
	err = each(ctx, p.intercepts, func(ctx context.Context, i int) error {
		return p.intercept(ctx, i, owners[i%len(owners)])
	})
	if err != nil {
		return fmt.Errorf("intercepts: %w", err)
	}
	return nil
}

func app(i int) string { return fmt.Sprintf("app-%d", i) }
func uid(i int) string { return fmt.Sprintf("pod-%d", i) }

// report tells of the workloads as a node does, and goes on to do so.
func (p *population) report(ctx, life context.Context, workloads int) error {
	list := new(nodev1.Workloads)
	for i := range workloads {
		list.Workloads = append(list.Workloads, &commandv1.WorkloadReport{
			Namespace: namespace, Name: app(i), Kind: "Deployment", Pods: []*commandv1.Pod{{
				Name: app(i) + "-0", Uid: uid(i), Ip: "10.0.0.5",
				Containers: []*commandv1.Container{{Name: "app", Ports: []*commandv1.ContainerPort{{Name: "http", Port: 8080, Protocol: "TCP"}}}},
			}},
		})
	}
	first := &nodev1.NodeReport{Hello: &nodev1.NodeHello{Name: benchName, BootId: "bench", Version: "bench", StealBackend: "none"}, Workloads: list}
	known := make(chan struct{})
	p.wg.Go(func() {
		for n := 0; life.Err() == nil; n++ {
			// How the stream ended does not matter: the next is on another server.
			_ = p.follow(life, p.nodes[n%len(p.nodes)], first, known)
			_ = pause(life, askTimeout/10) // the loop looks at life
			first = &nodev1.NodeReport{Hello: first.GetHello()}
		}
	})
	select {
	case <-known:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("report %d workloads: %w", workloads, ctx.Err())
	}
}

// follow is one stream of the node. It closes known with the first answer.
func (p *population) follow(ctx context.Context, cc *grpc.ClientConn, first *nodev1.NodeReport, known chan struct{}) error {
	stream, err := nodesvc.NewNodeControlClient(cc).Sync(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(first); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
		if first.GetWorkloads() != nil {
			select {
			case <-known:
			default:
				close(known)
			}
		}
	}
}

// intercept makes an intercept and lets its agent approve it.
func (p *population) intercept(ctx context.Context, i int, owner *manager.SessionInfo) error {
	at := i / perWorkload
	made, err := p.manager(p.clients).CreateIntercept(ctx, &manager.CreateInterceptRequest{Session: owner, InterceptSpec: &manager.InterceptSpec{
		Name: fmt.Sprintf("intercept-%d", i), Client: benchName, Agent: app(at), Namespace: namespace, Mechanism: "http",
		TargetHost: "127.0.0.1", TargetPort: 8080, PortIdentifier: "http", HeaderFilters: map[string]string{"x-bench": fmt.Sprint(i)},
	}})
	if err != nil {
		return err
	}
	_, err = p.manager(p.nodes).ReviewIntercept(ctx, &manager.ReviewInterceptRequest{
		Session: p.agents[at], Id: made.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.5",
	})
	return err
}

// remain keeps the agents alive.
func (p *population) remain(ctx context.Context) {
	for pause(ctx, remainEvery) == nil {
		// An agent that one round misses is reached by the next.
		_ = each(ctx, len(p.agents), func(ctx context.Context, i int) error {
			ctx, cancel := context.WithTimeout(ctx, remainEvery/3)
			defer cancel()
			_, err := p.manager(p.nodes).Remain(ctx, &manager.RemainRequest{Session: p.agents[i]})
			if err != nil {
				_, err = p.manager(p.nodes).Remain(ctx, &manager.RemainRequest{Session: p.agents[i]})
			}
			return err
		})
	}
}

// manager is the service on one server after the other.
func (p *population) manager(conns []*grpc.ClientConn) managersvc.ManagerClient {
	return managersvc.NewManagerClient(conns[p.next.Add(1)%uint64(len(conns))])
}

// missing is how many sessions and intercepts less than at first the server
// that knows least has.
func (p *population) missing(ctx context.Context) (float64, error) {
	ops, end, err := p.t.operators()
	if err != nil {
		return 0, err
	}
	defer end()
	worst := 0
	for i, op := range ops {
		st, err := op.Status(ctx, new(operatorv1.StatusRequest), grpc.WaitForReady(true))
		if err != nil {
			return 0, fmt.Errorf("ask %s what it holds: %w", p.t.procs[i].name, err)
		}
		lost := max(0, p.sessions-int(st.GetAgents()+st.GetClients())) + max(0, p.intercepts-int(st.GetIntercepts()))
		worst = max(worst, lost)
	}
	return float64(worst), nil
}

func (p *population) close() error {
	p.cancel()
	p.wg.Wait()
	var errs []error
	for _, cc := range append(p.nodes, p.clients...) {
		errs = append(errs, cc.Close())
	}
	return errors.Join(errs...)
}

// each does something for the numbers below n, several at a time, until the
// first error.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(movers, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}
