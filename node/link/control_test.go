package link_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/node/internal/managertest"
	"trivet/node/link"
	"trivet/node/workload"
	"trivet/proto/telepresence/managersvc"
	nodev1 "trivet/proto/trivet/node/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func plain(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())...)
}

// source is a workload source that a test sets.
type source struct {
	mu      sync.Mutex
	set     *workload.Set
	changed chan struct{}
}

func newSource(t *testing.T, doc string) *source {
	s := &source{changed: make(chan struct{})}
	s.put(t, doc)
	return s
}

func (s *source) put(t *testing.T, doc string) {
	t.Helper()
	set, err := workload.Parse("test", "node-a", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = set
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *source) Get() (*workload.Set, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set, s.changed
}

const oneWorkload = `
workloads:
- {namespace: default, name: echo, pods: [{name: echo-0, uid: u0, ip: 10.0.0.1, hostNetwork: true,
   containers: [{name: app, env: {SECRET: x}, ports: [{name: http, port: 80}]}]}]}
`

// rig is a node's conversation with a manager.
type rig struct {
	manager *managertest.Manager
	servers []*managertest.Server
	source  *source
	pool    *link.Pool
	ledger  *link.Ledger
	orders  chan *nodev1.NodeOrders
	linked  chan bool
}

func newRig(t *testing.T, servers int, dir string) *rig {
	t.Helper()
	r := &rig{
		manager: managertest.New(t), source: newSource(t, oneWorkload),
		orders: make(chan *nodev1.NodeOrders, 16), linked: make(chan bool, 64),
	}
	var addrs []string
	for range servers {
		s := r.manager.Serve()
		r.servers = append(r.servers, s)
		addrs = append(addrs, s.Addr)
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	metrics := link.NewMetrics(prometheus.NewRegistry())
	var err error
	if r.ledger, err = link.OpenLedger(dir, metrics); err != nil {
		t.Fatal(err)
	}
	if r.pool, err = link.NewPool(link.PoolConfig{Servers: addrs, Dial: plain, Logger: logger, Metrics: metrics}); err != nil {
		t.Fatal(err)
	}
	control := &link.Control{
		Pool: r.pool, Ledger: r.ledger, Source: r.source, Logger: logger, Metrics: metrics,
		Hello:     &nodev1.NodeHello{Name: "node-a", BootId: "boot", Version: "1.0.0", StealBackend: "proxy", StealReason: "no root", Kernel: "6"},
		Orders:    func(o *nodev1.NodeOrders) { r.orders <- o },
		Connected: func(is bool) { r.linked <- is },
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { control.Run(ctx) })
	wg.Go(func() { r.pool.Run(ctx) })
	t.Cleanup(func() {
		for _, s := range r.servers {
			s.Resume()
		}
		cancel()
		wg.Wait()
		r.pool.Close()
	})
	return r
}

func (r *rig) next(t *testing.T) *nodev1.NodeOrders {
	t.Helper()
	select {
	case o := <-r.orders:
		return o
	case <-time.After(20 * time.Second):
		t.Fatal("no orders came")
		return nil
	}
}

func TestNodeReportsAndTakesOrders(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, t.TempDir())
	want := &nodev1.WantedAgent{Namespace: "default", Workload: "echo", PodUid: "u0"}
	r.manager.Order(want)
	if d := cmp.Diff([]*nodev1.WantedAgent{want}, r.next(t).GetAgents(), protocmp.Transform()); d != "" {
		t.Errorf("orders (-want +got):\n%s", d)
	}
	st := r.manager.State()
	hello := &nodev1.NodeHello{Name: "node-a", BootId: "boot", Version: "1.0.0", StealBackend: "proxy", StealReason: "no root", Kernel: "6"}
	if d := cmp.Diff(hello, st.Hellos[0], protocmp.Transform()); d != "" {
		t.Errorf("hello (-want +got):\n%s", d)
	}
	w := st.Workloads.GetWorkloads()
	if len(w) != 1 || w[0].GetName() != "echo" || w[0].GetPods()[0].GetUid() != "u0" {
		t.Fatalf("report is %v", w)
	}
	if env := w[0].GetPods()[0].GetContainers()[0].GetEnvironment(); len(env) > 0 {
		t.Errorf("the report tells secrets: %v", env)
	}
	r.source.put(t, "workloads: []")
	r.manager.Await("an empty report", func(s managertest.State) bool {
		return s.Workloads != nil && len(s.Workloads.GetWorkloads()) == 0
	})
}

func TestNodeMovesToAnotherServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3, t.TempDir())
	r.manager.Order()
	first := r.next(t)
	for i, s := range r.servers {
		s.Kill()
		r.manager.Await("a hello to the next server", func(st managertest.State) bool { return len(st.Hellos) >= i+2 })
		r.next(t)
		s.Restart()
	}
	hellos := r.manager.State().Hellos
	if d := cmp.Diff(first.GetFence(), hellos[1].GetHighest(), protocmp.Transform()); d != "" {
		t.Errorf("the second hello does not tell the highest fence (-want +got):\n%s", d)
	}
}

func TestNodeLeavesAServerThatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, t.TempDir())
	r.manager.Order()
	r.next(t)
	r.servers[0].Hang()
	r.manager.Await("a hello to the other server", func(st managertest.State) bool { return len(st.Hellos) == 2 })
}

func TestNodeRefusesOrdersOfThePast(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, t.TempDir())
	fence := func(term, revision uint64) *nodev1.NodeOrders {
		return &nodev1.NodeOrders{Fence: &nodev1.Fence{ClusterId: managertest.ClusterID, Term: term, Revision: revision}}
	}
	r.manager.OrderRaw(fence(5, 7))
	r.next(t)
	r.manager.OrderRaw(fence(4, 100))
	r.manager.OrderRaw(fence(5, 8))
	if got := r.next(t).GetFence(); got.GetTerm() != 5 || got.GetRevision() != 8 {
		t.Errorf("node took orders of %v", got)
	}
}

func TestNodeRefusesAnotherCluster(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, t.TempDir())
	r.manager.Order()
	r.next(t)
	foreign := &nodev1.NodeOrders{Fence: &nodev1.Fence{ClusterId: "other", Term: 9, Revision: 9}}
	r.manager.OrderRaw(foreign)
	// It turns away, says hello again, and still belongs to the first.
	r.manager.Await("a second hello", func(st managertest.State) bool { return len(st.Hellos) >= 2 })
	if got := r.ledger.Last().GetFence().GetClusterId(); got != managertest.ClusterID {
		t.Errorf("node belongs to cluster %q", got)
	}
	select {
	case o := <-r.orders:
		t.Errorf("node took orders of another cluster: %v", o)
	default:
	}
}

func TestConnectedIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, t.TempDir())
	r.manager.Order()
	expect := func(want bool) {
		t.Helper()
		select {
		case got := <-r.linked:
			if got != want {
				t.Fatalf("connected is %v, want %v", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("connected was not told to be %v", want)
		}
	}
	expect(true)
	r.servers[0].Kill()
	expect(false)
	r.servers[0].Restart()
	expect(true)
}

func TestCallsCarryTheHighestRevisionSeen(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	answer := "7"
	m := managertest.New(t)
	s := m.Serve(grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		mu.Lock()
		defer mu.Unlock()
		md, _ := metadata.FromIncomingContext(ctx)
		asked = append(asked, md.Get("trivet-revision")...)
		if len(md.Get("trivet-revision")) == 0 {
			asked = append(asked, "")
		}
		if err := grpc.SetHeader(ctx, metadata.Pairs("trivet-revision", answer)); err != nil {
			return nil, err
		}
		return h(ctx, req)
	}))
	pool, err := link.NewPool(link.PoolConfig{
		Servers: []string{s.Addr}, Dial: plain, Logger: slog.New(slog.DiscardHandler),
		Metrics: link.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for _, next := range []string{"5", "no number", "9", ""} {
		conn, err := pool.Current().Control()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := managersvc.NewManagerClient(conn).Version(t.Context(), &emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		answer = next
		mu.Unlock()
	}
	if d := cmp.Diff([]string{"", "7", "7", "7"}, asked); d != "" {
		t.Errorf("revisions asked for (-want +got):\n%s", d)
	}
}

func TestPoolTurnsOnlyOnce(t *testing.T) {
	t.Parallel()
	pool, err := link.NewPool(link.PoolConfig{
		Servers: []string{"a:1", "b:1", "c:1"}, Dial: plain, Logger: slog.New(slog.DiscardHandler),
		Metrics: link.NewMetrics(prometheus.NewRegistry()),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	first := pool.Current()
	for range 5 { // as many users see it fail at the same time
		pool.Failed(first, status.Error(codes.Unavailable, "gone"))
	}
	if got := pool.Current().Addr(); got != "b:1" {
		t.Errorf("current server is %s, want the second", got)
	}
	if got := pool.After(pool.Current()).Addr(); got != "c:1" {
		t.Errorf("server after it is %s, want the third", got)
	}
	pool.Close()
	if _, err := pool.Current().Control(); status.Code(err) != codes.Canceled {
		t.Errorf("a closed pool gives a connection, or %v", err)
	}
}
