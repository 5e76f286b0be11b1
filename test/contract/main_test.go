package contract

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"trivet/cmd/trivet/bundles"
	"trivet/cmd/trivet/devenv"
	"trivet/internal/pki"
	"trivet/internal/portmux"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	"trivet/test/peersim"
	"trivet/test/systest"
)

func TestMain(m *testing.M) { os.Exit(systest.Main(m)) }

// patience bounds a case, far above what it takes on an idle machine.
const patience = 60 * time.Second

// a case asserts one thing of the contract.
type assertion struct {
	// name says what holds.
	name string
	run  func(*site)
}

// tables are all of them.
var tables = []struct {
	name string
	rows []assertion
}{
	{"arrival", arrivalCases},
	{"liveness", livenessCases},
	{"reconnect", reconnectCases},
	{"removal", removalCases},
	{"disposition", dispositionCases},
	{"create", createCases},
	{"intercept", interceptCases},
	{"prepare", prepareCases},
	{"conflict", conflictCases},
	{"settings", settingsCases},
	{"log level", logLevelCases},
	{"names", nameCases},
	{"uninstall", uninstallCases},
	{"watch intercepts", watchInterceptCases},
	{"watch agents", watchAgentCases},
	{"watch pods", watchPodCases},
	{"watch workloads", watchWorkloadCases},
	{"watch network", watchNetworkCases},
	{"tunnel", tunnelCases},
	{"published test", publishedCases},
	{"peer", peerCases},
}

// TestContract runs every case through every server.
func TestContract(t *testing.T) {
	w := newWorld(t)
	n := 0
	for server := range 3 {
		t.Run(fmt.Sprintf("server %d", server+1), func(t *testing.T) {
			for _, table := range tables {
				t.Run(table.name, func(t *testing.T) {
					for _, row := range table.rows {
						place := n
						n++
						t.Run(row.name, func(t *testing.T) {
							t.Parallel()
							row.run(w.site(t, server, place))
						})
					}
				})
			}
		})
	}
}

// workloads are those of each namespace: web has three pods, db one.
var workloads = map[string]int{"web": 3, "db": 1}

const kind = "Deployment"

// world is the cluster with a node that reported the workloads of all cases.
type world struct {
	c    *systest.Cluster
	ca   *pki.CA
	node grpc.BidiStreamingClient[nodev1.NodeReport, nodev1.NodeOrders]
	// orders are what the node is to run.
	orders orders

	mu      sync.Mutex
	sources map[pki.ID]*pki.Source // guarded by mu
	// nodes are the node's connections, by server; all cases share them.
	nodes [3]*grpc.ClientConn
}

func newWorld(t *testing.T) *world {
	c := systest.StartServers(t)
	ca, err := pki.LoadCA(filepath.Join(c.Dir, bundles.CADir))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{c: c, ca: ca, sources: make(map[pki.ID]*pki.Source)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
		for _, cc := range w.nodes {
			cc.Close()
		}
	})
	for server := range w.nodes {
		w.nodes[server] = w.dial(t, server, pki.RoleNode, systest.NodeName)
	}
	total := 0
	for _, table := range tables {
		total += 3 * len(table.rows)
	}
	if w.node, err = nodesvc.NewNodeControlClient(w.nodes[0]).Sync(ctx); err != nil {
		t.Fatal(err)
	}
	var list []*commandv1.WorkloadReport
	for i := range total {
		for _, name := range []string{"db", "web"} {
			list = append(list, workload(namespace(i), name))
		}
	}
	if err := w.node.Send(&nodev1.NodeReport{
		Hello:     &nodev1.NodeHello{Name: systest.NodeName, BootId: "boot", Version: "v1", StealBackend: "proxy"},
		Workloads: &nodev1.Workloads{Workloads: list},
	}); err != nil {
		t.Fatal(err)
	}
	first, err := w.node.Recv()
	if err != nil {
		t.Fatal(err)
	}
	w.orders.take(first)
	go func() {
		defer close(done)
		for {
			o, err := w.node.Recv()
			if err != nil {
				return
			}
			w.orders.take(o)
		}
	}()
	return w
}

// orders are the newest ones of the node.
type orders struct {
	mu      sync.Mutex
	newest  *nodev1.NodeOrders // guarded by mu
	changed chan struct{}      // guarded by mu; closed with the next ones
}

func (o *orders) take(n *nodev1.NodeOrders) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.changed != nil {
		close(o.changed)
	}
	o.newest, o.changed = n, make(chan struct{})
}

// await waits until the node is to run agents of these workloads of a namespace.
func (o *orders) await(s *site, ns, want string) {
	s.Helper()
	for {
		o.mu.Lock()
		newest, changed := o.newest, o.changed
		o.mu.Unlock()
		names := map[string]bool{}
		for _, a := range newest.GetAgents() {
			if a.GetNamespace() == ns {
				names[a.GetWorkload()] = true
			}
		}
		got := strings.Join(slices.Sorted(maps.Keys(names)), " ")
		if got == want {
			return
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			s.Fatalf("the node is to run agents of %q, want %q", got, want)
		}
	}
}

func namespace(n int) string { return fmt.Sprintf("case-%03d", n) }

func podName(name string, n int) string { return fmt.Sprintf("%s-%d", name, n) }
func podUID(ns, name string, n int) string {
	return fmt.Sprintf("%s-%s-uid-%d", ns, name, n)
}
func podIP(name string, n int) string { return fmt.Sprintf("10.1.%d.%d", len(name), n+1) }

func workload(ns, name string) *commandv1.WorkloadReport {
	w := &commandv1.WorkloadReport{Namespace: ns, Name: name, Kind: kind}
	for n := range workloads[name] {
		w.Pods = append(w.Pods, &commandv1.Pod{
			Name: podName(name, n), Uid: podUID(ns, name, n), Ip: podIP(name, n), Containers: []*commandv1.Container{{
				Name: "app", Ports: []*commandv1.ContainerPort{
					{Name: "http", Port: 8080, Protocol: "TCP"}, {Name: "admin", Port: 8081, Protocol: "TCP"}, {Name: "dns", Port: 53, Protocol: "UDP"},
				},
			}},
		})
	}
	return w
}

// conn connects an identity to one server. It ends with the case.
func (w *world) conn(t testing.TB, server int, role pki.Role, name string) *grpc.ClientConn {
	t.Helper()
	cc := w.dial(t, server, role, name)
	t.Cleanup(func() { cc.Close() })
	return cc
}

func (w *world) dial(t testing.TB, server int, role pki.Role, name string) *grpc.ClientConn {
	t.Helper()
	creds := portmux.ClientCredentials(pki.ClientConfig(w.source(t, role, name), pki.Policy{ALPN: []string{"h2"}}), nil)
	cc, err := grpc.NewClient("passthrough:///"+w.c.Dev.Addresses[server], grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	return cc
}

// source is an identity's certificate.
func (w *world) source(t testing.TB, role pki.Role, name string) *pki.Source {
	t.Helper()
	id := pki.ID{Cluster: devenv.ClusterName, Role: role, Name: name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if src := w.sources[id]; src != nil {
		return src
	}
	b, err := w.ca.Issue(pki.Template{ID: id}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.sources[id] = pki.NewSource(b)
	return w.sources[id]
}

// site is what a case has to itself.
type site struct {
	*testing.T
	ctx context.Context
	w   *world
	// at is the server through which the case asks.
	at int
	ns string
	// client is the user's way, node that of the agents.
	client, node managersvc.ManagerClient
}

func (w *world) site(t *testing.T, server, place int) *site {
	s := &site{T: t, ctx: systest.Deadline(t, patience), w: w, at: server, ns: namespace(place)}
	s.client, s.node = s.as(s.user("alice")), managersvc.NewManagerClient(w.nodes[server])
	return s
}

// user makes a name that only this case has.
func (s *site) user(name string) string { return name + "-" + s.ns }

// as is the way of another user.
func (s *site) as(name string) managersvc.ManagerClient { return s.asAt(s.at, name) }

func (s *site) asAt(server int, name string) managersvc.ManagerClient {
	return managersvc.NewManagerClient(s.w.conn(s, server, pki.RoleClient, name))
}

// operator is the way of somebody who may do what clients may, and more.
func (s *site) operator() managersvc.ManagerClient {
	return managersvc.NewManagerClient(s.w.conn(s, s.at, pki.RoleOperator, s.user("operator")))
}

// other is another server than the case's own.
func (s *site) other() int { return (s.at + 1) % 3 }

func (s *site) clientInfo(name string) *manager.ClientInfo {
	return &manager.ClientInfo{Name: name, InstallId: "install-" + name, Product: "telepresence", Version: "2.30.0", Namespace: s.ns}
}

// olderAgent and newerAgent are what an agent of the workload's n-th pod arrives
// with.
func (s *site) olderAgent(name string, n int) *manager.AgentInfo {
	return &manager.AgentInfo{
		Name: name, Namespace: s.ns, PodName: podName(name, n), PodIp: podIP(name, n), ApiPort: 9999, Product: "telepresence", Version: "2.20.2",
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: "2.20.2"}},
	}
}

func (s *site) newerAgent(name string, n int) *manager.AgentInfo {
	a := s.olderAgent(name, n)
	a.Kind, a.PodUid, a.Version = kind, podUID(s.ns, name, n), "2.30.0"
	a.Mechanisms[0].Version = "2.30.0"
	a.Containers = map[string]*manager.AgentInfo_ContainerInfo{"app": {MountPoint: "/tel_app_mounts/app", Mounts: map[string]int32{"/data": 1}}}
	return a
}

// both runs a case with the agents of each generation.
func both(run func(s *site, agent func(name string, n int) *manager.AgentInfo)) func(*site) {
	return func(s *site) {
		for _, g := range []struct {
			name  string
			agent func(string, int) *manager.AgentInfo
			wl    string
		}{{"older", s.olderAgent, "web"}, {"newer", s.newerAgent, "db"}} {
			s.Run(g.name, func(t *testing.T) {
				sub := *s
				sub.T = t
				run(&sub, func(_ string, n int) *manager.AgentInfo { return g.agent(g.wl, n) })
			})
		}
	}
}

// arrive begins a session of the case's user.
func (s *site) arrive() *manager.SessionInfo {
	s.Helper()
	return s.arriveAs(s.client, s.user("alice"))
}

func (s *site) arriveAs(m managersvc.ManagerClient, name string) *manager.SessionInfo {
	s.Helper()
	got, err := m.ArriveAsClient(s.ctx, s.clientInfo(name))
	s.must(err)
	return got
}

// arriveAgent begins an agent's session.
func (s *site) arriveAgent(info *manager.AgentInfo) *manager.SessionInfo {
	s.Helper()
	got, err := s.node.ArriveAsAgent(s.ctx, info)
	s.must(err)
	s.Cleanup(func() { _, _ = s.node.Depart(context.WithoutCancel(s.ctx), got) })
	return got
}

// spec asks for the http port of a workload.
func (s *site) spec(name, agent string) *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name: name, Client: s.user("alice"), Agent: agent, Namespace: s.ns, Mechanism: "tcp", PortIdentifier: "http",
		TargetHost: "127.0.0.1", TargetPort: 9090, DialTimeout: int64(5 * time.Second), RoundtripLatency: int64(time.Second),
	}
}

func (s *site) create(sess *manager.SessionInfo, spec *manager.InterceptSpec) *manager.InterceptInfo {
	s.Helper()
	got, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec})
	s.must(err)
	return got
}

// approve is an agent's verdict that it serves an intercept.
func (s *site) approve(agent *manager.SessionInfo, id, podIP string) {
	s.Helper()
	_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: id, Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: podIP, MechanismArgsDesc: "all TCP connections",
	})
	s.must(err)
}

// present opens the dial stream by which the owner of intercepts is there.
func (s *site) present(m managersvc.ManagerClient, sess *manager.SessionInfo) grpc.ServerStreamingClient[manager.DialRequest] {
	s.Helper()
	dials, err := m.WatchDial(s.ctx, sess)
	s.must(err)
	_, err = dials.Header()
	s.must(err)
	return dials
}

// older plays an agent of the older generation.
func (s *site) older(name string, n int, tune ...func(*peersim.OlderAgentConfig)) *peersim.OlderAgent {
	s.Helper()
	cfg := peersim.OlderAgentConfig{
		Dial: peersim.Shared(s.nodeConn()), Info: s.olderAgent(name, n), Containers: []string{"app"},
	}
	for _, f := range tune {
		f(&cfg)
	}
	a := peersim.StartOlderAgent(s.ctx, cfg)
	s.Cleanup(a.Close)
	return a
}

// newer plays an agent of the newer generation.
func (s *site) newer(name string, n int) *peersim.NewerAgent {
	s.Helper()
	a := peersim.StartNewerAgent(s.ctx, peersim.NewerAgentConfig{
		Dial: peersim.Shared(s.nodeConn()), Info: s.newerAgent(name, n),
	})
	s.Cleanup(a.Close)
	return a
}

// nodeAt is the agents' way through another server.
func (s *site) nodeAt(server int) managersvc.ManagerClient {
	return managersvc.NewManagerClient(s.w.nodes[server])
}

// levels lets one case at a time change how much is logged, which all share.
var levels sync.Mutex

// quick is a rhythm for cases that are about what comes after a pause.
var quick = peersim.Rhythm{Remain: 50 * time.Millisecond, Retry: 50 * time.Millisecond}

func quickly(c *peersim.OlderAgentConfig) { c.Rhythm = quick }

func (s *site) clientConn(at int, name string) *grpc.ClientConn {
	return s.w.conn(s, at, pki.RoleClient, name)
}

func (s *site) nodeConn() *grpc.ClientConn { return s.w.nodes[s.at] }
