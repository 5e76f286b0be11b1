package managertest

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/tunnel"
)

// ClusterID is in the fence of all orders that Order makes.
const ClusterID = "cluster-a"

// awaitFor is how long Await waits; tests run on busy machines.
const awaitFor = 30 * time.Second

// TunnelFunc serves the manager's end of an agent's tunnel, after its first
// messages: what the owner's end would do.
type TunnelFunc func(s *Server, info tunnel.StreamInfo, client string, stream tunnel.Stream) error

// Manager is the state that its servers share.
type Manager struct {
	t testing.TB

	mu         sync.Mutex
	changed    chan struct{} // closed at any change
	agents     map[string]*manager.AgentInfo
	intercepts map[string]*manager.InterceptInfo
	reviews    []*manager.ReviewInterceptRequest
	orders     *nodev1.NodeOrders
	onTunnel   TunnelFunc
	watches    map[string]int // open WatchIntercepts by session
	dials      map[string]int // open WatchDial by session
	log        []string
	hellos     []*nodev1.NodeHello
	workloads  *nodev1.Workloads
}

// New makes a manager without servers.
func New(t testing.TB) *Manager {
	return &Manager{
		t: t, changed: make(chan struct{}),
		agents: map[string]*manager.AgentInfo{}, intercepts: map[string]*manager.InterceptInfo{},
		watches: map[string]int{}, dials: map[string]int{},
	}
}

// update changes the state and wakes everybody who waits for a change.
func (m *Manager) update(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	close(m.changed)
	m.changed = make(chan struct{})
}

// State is a copy of what the manager knows.
type State struct {
	// Agents are the sessions of agents.
	Agents map[string]*manager.AgentInfo
	// Intercepts are all intercepts.
	Intercepts map[string]*manager.InterceptInfo
	// Reviews are all reviews in the order in which they came.
	Reviews []*manager.ReviewInterceptRequest
	// Watches and Dials count the open streams by session.
	Watches, Dials map[string]int
	// Log names the calls about sessions, as "arrive ID", "reconnect ID",
	// "remain ID", "depart ID".
	Log []string
	// Hellos are those of the node, Workloads its last report.
	Hellos    []*nodev1.NodeHello
	Workloads *nodev1.Workloads
}

// State returns what the manager knows now.
func (m *Manager) State() State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state()
}

func (m *Manager) state() State {
	return State{
		Agents: maps.Clone(m.agents), Intercepts: maps.Clone(m.intercepts), Reviews: slices.Clone(m.reviews),
		Watches: maps.Clone(m.watches), Dials: maps.Clone(m.dials), Log: slices.Clone(m.log),
		Hellos: slices.Clone(m.hellos), Workloads: m.workloads,
	}
}

// Await waits until the state is as wanted.
func (m *Manager) Await(what string, wanted func(State) bool) {
	m.t.Helper()
	limit := time.NewTimer(awaitFor)
	defer limit.Stop()
	for {
		m.mu.Lock()
		st, changed := m.state(), m.changed
		m.mu.Unlock()
		if wanted(st) {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			m.t.Fatalf("waited in vain for %s; the manager knows %+v", what, st)
		}
	}
}

// Order has all nodes told that agents are wanted, with the next revision.
func (m *Manager) Order(agents ...*nodev1.WantedAgent) {
	m.update(func() {
		revision := m.orders.GetFence().GetRevision() + 1
		m.orders = &nodev1.NodeOrders{
			Fence:  &nodev1.Fence{ClusterId: ClusterID, Term: 1, Revision: revision},
			Agents: agents,
		}
	})
}

// OrderRaw has all nodes told exactly these orders.
func (m *Manager) OrderRaw(o *nodev1.NodeOrders) { m.update(func() { m.orders = o }) }

// SetIntercepts replaces all intercepts.
func (m *Manager) SetIntercepts(list ...*manager.InterceptInfo) {
	m.update(func() {
		m.intercepts = map[string]*manager.InterceptInfo{}
		for _, i := range list {
			m.intercepts[i.GetId()] = proto.CloneOf(i)
		}
	})
}

// DropSession ends an agent's session, as if it had expired.
func (m *Manager) DropSession(id string) { m.update(func() { delete(m.agents, id) }) }

// OnTunnel says what becomes of tunnels from now on.
func (m *Manager) OnTunnel(f TunnelFunc) { m.update(func() { m.onTunnel = f }) }

// snapshot is what an agent is shown.
func (m *Manager) snapshot(agent *manager.AgentInfo) *manager.InterceptInfoSnapshot {
	out := &manager.InterceptInfoSnapshot{}
	for _, i := range m.intercepts {
		if i.GetSpec().GetAgent() == agent.GetName() && i.GetSpec().GetNamespace() == agent.GetNamespace() {
			out.Intercepts = append(out.Intercepts, proto.CloneOf(i))
		}
	}
	slices.SortFunc(out.Intercepts, func(a, b *manager.InterceptInfo) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return out
}

// Intercept makes a waiting intercept of port 8080.
func Intercept(session, name, workload string, change ...func(*manager.InterceptInfo)) *manager.InterceptInfo {
	i := &manager.InterceptInfo{
		Id:          session + ":" + name,
		Disposition: manager.InterceptDispositionType_WAITING,
		Spec: &manager.InterceptSpec{
			Name: name, Agent: workload, Namespace: "default", Mechanism: "tcp", Protocol: "TCP",
			TargetHost: "127.0.0.1", TargetPort: 3000, ContainerName: "app", ContainerPort: 8080,
			RoundtripLatency: int64(time.Second), DialTimeout: int64(time.Second),
		},
		ClientSession: &manager.SessionInfo{SessionId: session},
	}
	for _, f := range change {
		f(i)
	}
	return i
}
