package proof

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/cmd/trivet/devenv"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	"trivet/test/peersim"
	"trivet/test/systest"
)

const (
	peerKills = 50
	// pairs are a client and the agent of a workload each, of either generation:
	// every server has clients whose agents are at every other server.
	pairs = 9
	// back is how long a peer may take after it has arrived again until its
	// intercept is served.
	back = 10 * time.Second
)

// TestPeersOutliveLeaders kills the leader again and again under published
// peers of both generations.
func TestPeersOutliveLeaders(t *testing.T) {
	if os.Getenv("TRIVET_PROOF") != "1" {
		t.Skip("SKIP reason: a long proof, run by make proof (TRIVET_PROOF=1)")
	}
	f := newFleet(t)
	for n := range peerKills {
		if !t.Run(fmt.Sprintf("kill %d", n+1), f.round) {
			break
		}
	}
	t.Logf("%d leaders killed under %d peers: %d times a peer's connection went with the server; %d older clients ended their sessions themselves; "+
		"from an older agent's arrival to its intercept served %s", f.kills, 4*pairs, f.hit, f.gaveUp, spread(f.backAfter))
}

// fleet is all peers.
type fleet struct {
	c     *systest.Cluster
	ca    *pki.CA
	older []*olderPair
	newer []*newerPair

	kills, hit, gaveUp int
	backAfter          []time.Duration
}

// link is where a peer's connection is.
type link struct{ server atomic.Int32 }

type olderPair struct {
	agentAt, clientAt link
	agent             *peersim.OlderAgent
	client            *peersim.OlderClient
	spec              *manager.InterceptSpec
	id                string
}

type newerPair struct {
	agentAt, clientAt link
	agent             *peersim.NewerAgent
	client            *peersim.NewerClient
	id                string
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{c: systest.StartServers(t)}
	var err error
	if f.ca, err = pki.LoadCA(filepath.Join(f.c.Dir, bundles.CADir)); err != nil {
		t.Fatal(err)
	}
	f.report(t)
	ctx := systest.Deadline(t, settle)
	for i := range pairs {
		o := &olderPair{spec: wanted("older", i)}
		o.agent = peersim.StartOlderAgent(t.Context(), peersim.OlderAgentConfig{
			Dial: f.dialer(t, pki.RoleNode, systest.NodeName, i%3, &o.agentAt), Info: agent("older", i),
		})
		t.Cleanup(o.agent.Close)
		o.client = peersim.StartOlderClient(t.Context(), peersim.OlderClientConfig{
			Dial: f.dialer(t, pki.RoleClient, workloadOf("older", i), i/3, &o.clientAt), Info: laptop("older", i), Root: true,
		})
		t.Cleanup(o.client.Close)
		n := new(newerPair)
		info := agent("newer", i)
		info.Kind, info.PodUid = "Deployment", info.GetPodName()
		n.agent = peersim.StartNewerAgent(t.Context(), peersim.NewerAgentConfig{
			Dial: f.dialer(t, pki.RoleNode, systest.NodeName, i%3, &n.agentAt), Info: info,
		})
		t.Cleanup(n.agent.Close)
		n.client = peersim.StartNewerClient(t.Context(), peersim.NewerClientConfig{
			Dial: f.dialer(t, pki.RoleClient, workloadOf("newer", i), i/3, &n.clientAt), Info: laptop("newer", i), Root: true,
		})
		t.Cleanup(n.client.Close)
		for _, r := range []*peersim.Record{o.agent.Record, o.client.Record, n.agent.Record, n.client.Record} {
			f.await(t, ctx, r, 0, peersim.Is(peersim.Ready))
		}
		o.create(t, ctx)
		made, err := n.client.Intercept(ctx, wanted("newer", i))
		if err != nil {
			t.Fatal(err)
		}
		n.id = made.GetId()
		f.older, f.newer = append(f.older, o), append(f.newer, n)
	}
	return f
}

func (o *olderPair) create(t *testing.T, ctx context.Context) {
	t.Helper()
	made, err := o.client.Intercept(ctx, o.spec)
	if err != nil {
		t.Fatal(err)
	}
	o.id = made.GetId()
}

func workloadOf(generation string, i int) string { return fmt.Sprintf("%s-%d", generation, i) }
func podOf(generation string, i int) string      { return fmt.Sprintf("%s-%d-0", generation, i) }
func versionOf(generation string) string {
	if generation == "older" {
		return "2.20.2"
	}
	return "2.30.0"
}

func laptop(generation string, i int) *manager.ClientInfo {
	name := workloadOf(generation, i)
	return &manager.ClientInfo{Name: name, InstallId: name, Product: "telepresence", Version: versionOf(generation), Namespace: systest.Namespace}
}

func agent(generation string, i int) *manager.AgentInfo {
	return &manager.AgentInfo{
		Name: workloadOf(generation, i), Namespace: systest.Namespace, PodName: podOf(generation, i), PodIp: fmt.Sprintf("10.0.0.%d", i+1),
		Product: "telepresence", Version: versionOf(generation),
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: versionOf(generation)}},
	}
}

func wanted(generation string, i int) *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name: "one", Client: workloadOf(generation, i), Agent: workloadOf(generation, i), Namespace: systest.Namespace, Mechanism: "tcp",
		PortIdentifier: systest.PortName, TargetHost: "127.0.0.1", TargetPort: 9090,
	}
}

// connect makes a connection that stays with the server it reached for as long
// as that lives, and then goes to another one: what a service of a cluster does.
func (f *fleet) connect(t *testing.T, src *pki.Source, home int, at *link) (*grpc.ClientConn, error) {
	creds := portmux.ClientCredentials(pki.ClientConfig(src, pki.Policy{ALPN: []string{"h2"}}), nil)
	return grpc.NewClient("passthrough:///manager", grpc.WithTransportCredentials(creds),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			var last error
			for i := range f.c.Dev.Addresses {
				server := (home + i) % len(f.c.Dev.Addresses)
				conn, err := new(net.Dialer).DialContext(ctx, "tcp", f.c.Dev.Addresses[server])
				if err == nil {
					at.server.Store(int32(server))
					return conn, nil
				}
				last = err
			}
			return nil, last
		}))
}

func (f *fleet) dialer(t *testing.T, role pki.Role, name string, home int, at *link) peersim.Dialer {
	t.Helper()
	src := f.source(t, role, name)
	return func(context.Context) (grpc.ClientConnInterface, func(), error) {
		cc, err := f.connect(t, src, home, at)
		return cc, func() { cc.Close() }, err
	}
}

func (f *fleet) source(t *testing.T, role pki.Role, name string) *pki.Source {
	t.Helper()
	b, err := f.ca.Issue(pki.Template{ID: pki.ID{Cluster: devenv.ClusterName, Role: role, Name: name}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return pki.NewSource(b)
}

// report plays the node that has the agents' pods.
func (f *fleet) report(t *testing.T) {
	var list []*commandv1.WorkloadReport
	for _, generation := range []string{"newer", "older"} {
		for i := range pairs {
			a := agent(generation, i)
			list = append(list, &commandv1.WorkloadReport{Namespace: a.GetNamespace(), Name: a.GetName(), Kind: "Deployment", Pods: []*commandv1.Pod{{
				Name: a.GetPodName(), Uid: a.GetPodName(), Ip: a.GetPodIp(), Containers: []*commandv1.Container{{
					Name: "app", Ports: []*commandv1.ContainerPort{{Name: systest.PortName, Port: 8080, Protocol: "TCP"}},
				}},
			}}})
		}
	}
	cc, err := f.connect(t, f.source(t, pki.RoleNode, systest.NodeName), 0, new(link))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	first := make(chan struct{})
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		cc.Close()
	})
	wg.Go(func() {
		told := sync.OnceFunc(func() { close(first) })
		for ctx.Err() == nil {
			stream, err := nodesvc.NewNodeControlClient(cc).Sync(ctx, grpc.WaitForReady(true))
			if err != nil {
				continue
			}
			_ = stream.Send(&nodev1.NodeReport{ // an error comes with Recv
				Hello:     &nodev1.NodeHello{Name: systest.NodeName, BootId: "boot", Version: "v1", StealBackend: "proxy"},
				Workloads: &nodev1.Workloads{Workloads: list},
			})
			for {
				if _, err := stream.Recv(); err != nil {
					break
				}
				told()
			}
		}
	})
	select {
	case <-first:
	case <-time.After(settle):
		t.Fatal("the node has no orders")
	}
}

func (f *fleet) await(t *testing.T, ctx context.Context, r *peersim.Record, mark uint64, is func(peersim.Event) bool) peersim.Event {
	t.Helper()
	e, _, err := r.Wait(ctx, mark, is)
	if err != nil {
		t.Fatalf("%v; its record: %v", err, r.Since(mark))
	}
	return e
}

// noticed lists what a peer saw that it must not have if its server lived on.
func noticed(r *peersim.Record, mark uint64) []peersim.Event {
	return slices.DeleteFunc(r.Since(mark), func(e peersim.Event) bool {
		switch e.Kind {
		case peersim.Snapshot, peersim.Pods, peersim.Network, peersim.Reviewed, peersim.Level:
			return e.Err == nil
		case peersim.Remained:
			return e.Err == nil
		}
		return false
	})
}

// round kills the leader and looks at what the peers make of it.
func (f *fleet) round(t *testing.T) {
	leader := f.c.Leader(t)
	type peer struct {
		*peersim.Record
		name string
		mark uint64
		hit  bool
	}
	var all []peer
	add := func(name string, r *peersim.Record, at *link) peer {
		p := peer{r, name, r.Mark(), int(at.server.Load()) == leader}
		all = append(all, p)
		return p
	}
	var olderAgents, olderClients []peer
	for i, o := range f.older {
		olderAgents = append(olderAgents, add(fmt.Sprintf("older agent %d", i), o.agent.Record, &o.agentAt))
		olderClients = append(olderClients, add(fmt.Sprintf("older client %d", i), o.client.Record, &o.clientAt))
	}
	var newer []peer
	for i, n := range f.newer {
		newer = append(newer, add(fmt.Sprintf("newer agent %d", i), n.agent.Record, &n.agentAt))
		add(fmt.Sprintf("newer client %d", i), n.client.Record, &n.clientAt)
	}
	if err := f.c.Dev.Servers[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	f.kills++
	ctx := systest.Deadline(t, settle)
	for i, o := range f.older {
		f.outlive(t, ctx, o, olderAgents[i].mark, olderAgents[i].hit, olderClients[i].mark)
	}
	for i, n := range f.newer {
		if newer[i].hit {
			// It says itself that it is back; until then it serves what it knows.
			f.await(t, ctx, n.agent.Record, newer[i].mark, func(e peersim.Event) bool { return e.Kind == peersim.Reconnected && e.Err == nil })
		}
		f.goOn(t, n)
	}
	for _, p := range all {
		if p.hit {
			f.hit++
			continue
		}
		if saw := noticed(p.Record, p.mark); len(saw) > 0 {
			t.Errorf("%s, whose server lives, noticed: %v", p.name, saw)
		}
	}
	f.c.Restart(t, leader)
	f.c.WantSameState(t)
}

// outlive waits until an older pair is as it was.
func (f *fleet) outlive(t *testing.T, ctx context.Context, o *olderPair, agentMark uint64, agentHit bool, clientMark uint64) {
	t.Helper()
	arrived := time.Now()
	if agentHit {
		arrived = f.await(t, ctx, o.agent.Record, agentMark, peersim.Is(peersim.Arrived)).At
	}
	// A client that ended its session itself, with a Depart that got through, has
	// lost its intercept; its user makes it again.
	var departed bool
	systest.Eventually(t, back, "the client has a session", func() error {
		departed = false
		for _, e := range o.client.Since(clientMark) {
			departed = departed || e.Kind == peersim.Departed && e.Err == nil
		}
		if o.client.Session() == nil {
			return fmt.Errorf("none: %v", o.client.Since(clientMark))
		}
		return nil
	})
	if departed {
		f.gaveUp++
		o.create(t, ctx)
	}
	systest.Eventually(t, back, "the intercept is served", func() error {
		if own := o.client.Intercepts(); len(own) != 1 || own[0].GetId() != o.id || own[0].GetDisposition() != manager.InterceptDispositionType_ACTIVE {
			return fmt.Errorf("the client sees %v: %v", own, o.client.Since(clientMark))
		}
		if served := o.agent.Serves(); len(served) != 1 || served[0].GetId() != o.id {
			return fmt.Errorf("the agent serves %v: %v", served, o.agent.Since(agentMark))
		}
		return nil
	})
	if agentHit {
		f.backAfter = append(f.backAfter, time.Since(arrived))
	}
}

// goOn waits until a newer pair is as it was. Neither has another session ever.
func (f *fleet) goOn(t *testing.T, n *newerPair) {
	t.Helper()
	systest.Eventually(t, settle, "the newer intercept is served", func() error {
		if own := n.client.Intercepts(); len(own) != 1 || own[0].GetId() != n.id || own[0].GetDisposition() != manager.InterceptDispositionType_ACTIVE {
			return fmt.Errorf("the client sees %v", own)
		}
		if served := n.agent.Serves(); len(served) != 1 || served[0].GetId() != n.id {
			return fmt.Errorf("the agent serves %v", served)
		}
		return nil
	})
	if n.agent.Count(peersim.Arrived) != 1 || n.client.Count(peersim.Arrived) != 1 {
		t.Errorf("a session was lost: the agent arrived %d times, the client %d times", n.agent.Count(peersim.Arrived), n.client.Count(peersim.Arrived))
	}
}
