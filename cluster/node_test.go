package cluster_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// sync opens a node's stream to a server with a hello and returns the stream
// and the first orders, or how it ended.
func (f *fleet) sync(at *clustertest.Member, name string, report *nodev1.NodeReport) (nodesvc.NodeControl_SyncClient, *nodev1.NodeOrders, error) {
	f.t.Helper()
	stream, err := nodesvc.NewNodeControlClient(f.Conn(at, pki.RoleNode, name)).Sync(f.ctx)
	must(f.t, err)
	must(f.t, stream.Send(report))
	orders, err := stream.Recv()
	return stream, orders, err
}

func hello(name string, highest *nodev1.Fence) *nodev1.NodeReport {
	return &nodev1.NodeReport{Hello: &nodev1.NodeHello{Name: name, BootId: "boot", Version: "v1", StealBackend: "proxy", Highest: highest}}
}

func TestOrdersFollowWhatIsWanted(t *testing.T) {
	f := newFleet(t, 3)
	// A second stream of the same node, on another server than the first.
	stream, first, err := f.sync(f.Servers[1], "node-1", hello("node-1", nil))
	must(t, err)
	if len(first.GetAgents()) != 0 {
		t.Errorf("agents are wanted before anybody asked: %v", first.GetAgents())
	}
	if fence := first.GetFence(); fence.GetClusterId() != "test" || fence.GetTerm() == 0 || fence.GetRevision() == 0 {
		t.Errorf("fence %v", fence)
	}
	alice := f.manager(2, pki.RoleClient, "alice")
	sess := f.arriveClient(alice, "alice")
	ensured := make(chan error, 1)
	go func() {
		snap, err := alice.EnsureAgent(f.ctx, &manager.EnsureAgentRequest{Session: sess, Name: "echo", Namespace: "default"})
		if err == nil && len(snap.GetAgents()) != 1 {
			t.Errorf("EnsureAgent answered with %v", snap.GetAgents())
		}
		ensured <- err
	}()
	next, err := stream.Recv()
	must(t, err)
	want := []*nodev1.WantedAgent{{Namespace: "default", Workload: "echo", PodUid: podUID}}
	if d := cmp.Diff(want, next.GetAgents(), protocmp.Transform()); d != "" {
		t.Errorf("wanted agents (-want +got):\n%s", d)
	}
	if next.GetFence().GetRevision() <= first.GetFence().GetRevision() {
		t.Errorf("the fence went from %v to %v", first.GetFence(), next.GetFence())
	}
	f.arriveAgent(f.manager(0, pki.RoleNode, "node-1"))
	must(t, <-ensured)

	// A node that has seen that is served by any other server, never with less.
	for _, at := range f.Servers {
		s, orders, err := f.sync(at, "node-1", hello("node-1", next.GetFence()))
		must(t, err)
		if orders.GetFence().GetRevision() < next.GetFence().GetRevision() || len(orders.GetAgents()) != 1 {
			t.Errorf("%s gives older orders: %v", at.Name, orders)
		}
		must(t, s.CloseSend())
	}
	// So is one that has seen less, after a restart of its own.
	older := proto.CloneOf(first.GetFence())
	_, orders, err := f.sync(f.Servers[0], "node-1", hello("node-1", older))
	must(t, err)
	if len(orders.GetAgents()) != 1 {
		t.Errorf("orders %v", orders)
	}
	// A report that drops the workload takes the wish back.
	must(t, stream.Send(&nodev1.NodeReport{Workloads: new(nodev1.Workloads)}))
	next, err = stream.Recv()
	must(t, err)
	if len(next.GetAgents()) != 0 {
		t.Errorf("agents are wanted of a workload that is gone: %v", next.GetAgents())
	}
	f.SameDigests()
}

func TestNodesThatAreTurnedAway(t *testing.T) {
	f := newFleet(t, 1)
	_, first, err := f.sync(f.Servers[0], "node-2", hello("node-2", nil))
	must(t, err)
	fence := func(change func(*nodev1.Fence)) *nodev1.Fence {
		x := proto.CloneOf(first.GetFence())
		change(x)
		return x
	}
	many := make([]*commandv1.Pod, 10_001)
	for i := range many {
		many[i] = new(commandv1.Pod)
	}
	for name, c := range map[string]struct {
		report *nodev1.NodeReport
		code   codes.Code
		reason string
	}{
		"no hello":        {new(nodev1.NodeReport), codes.InvalidArgument, "MISSING_FIELD"},
		"another's name":  {hello("node-1", nil), codes.PermissionDenied, "NOT_YOUR_NAME"},
		"foreign cluster": {hello("node-2", fence(func(x *nodev1.Fence) { x.ClusterId = "other" })), codes.FailedPrecondition, "FOREIGN_CLUSTER"},
		"from the future": {hello("node-2", fence(func(x *nodev1.Fence) { x.Revision += 1000 })), codes.FailedPrecondition, "REVISION_AHEAD"},
		"too many pods": {&nodev1.NodeReport{
			Hello:     hello("node-2", nil).GetHello(),
			Workloads: &nodev1.Workloads{Workloads: []*commandv1.WorkloadReport{{Namespace: "n", Name: "w", Pods: many}}},
		}, codes.InvalidArgument, "TOO_LARGE"},
	} {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			_, orders, err := f.sync(f.Servers[0], "node-2", c.report)
			if errs.Code(err) != c.code || errs.Reason(err) != c.reason {
				t.Errorf("got %v, %v (%s %s), want %s %s", orders, err, errs.Code(err), errs.Reason(err), c.code, c.reason)
			}
			if took := time.Since(begin); took > 8*time.Second {
				t.Errorf("it took %s to say so", took)
			}
		})
	}
}

func TestNodesAreShownAsConnectedWhileTheyAre(t *testing.T) {
	f := newFleet(t, 3)
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[2], pki.RoleOperator, "op"))
	connected := func(name string) bool {
		list, err := op.ListNodes(f.ctx, new(operatorv1.ListNodesRequest))
		must(t, err)
		for _, n := range list.GetNodes() {
			if n.GetName() == name {
				return n.GetConnected()
			}
		}
		return false
	}
	stream, _, err := f.sync(f.Servers[1], "node-2", hello("node-2", nil))
	must(t, err)
	clustertest.Eventually(t, "node-2 is connected", func() bool { return connected("node-2") })
	must(t, stream.CloseSend())
	clustertest.Eventually(t, "node-2 is not connected any more", func() bool { return !connected("node-2") })
	if !connected("node-1") {
		t.Error("node-1 went with it")
	}
}

// TestUninstallAgents: the node is told that no agent is wanted any more.
func TestUninstallAgents(t *testing.T) {
	f := newFleet(t, 3)
	alice := f.manager(2, pki.RoleOperator, "root")
	sess := f.arriveClient(alice, "root")
	wanted := func(n int) {
		t.Helper()
		for o := range f.orders {
			if len(o.GetAgents()) == n {
				return
			}
		}
	}
	ensured := make(chan error, 1)
	go func() {
		_, err := alice.EnsureAgent(f.ctx, &manager.EnsureAgentRequest{Session: sess, Name: "echo", Namespace: "default"})
		ensured <- err
	}()
	wanted(1)
	node := f.manager(0, pki.RoleNode, "node-1")
	_, err := node.ArriveAsAgent(f.ctx, f.agentInfo())
	must(t, err)
	must(t, <-ensured)
	_, err = alice.UninstallAgents(f.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess, Agents: []string{"echo", "nope"}})
	if status.Code(err) != codes.NotFound || !strings.Contains(status.Convert(err).Message(), "Workload nope.default not found") {
		t.Errorf("with a workload that is not there: %v", err)
	}
	_, err = alice.UninstallAgents(f.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess, Agents: []string{"echo"}})
	must(t, err)
	wanted(0)
	_, err = alice.UninstallAgents(f.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess})
	must(t, err)
	_, err = alice.UninstallAgents(f.ctx, &manager.UninstallAgentsRequest{SessionInfo: &manager.SessionInfo{SessionId: "nobody"}})
	if status.Code(err) != codes.NotFound {
		t.Errorf("of an unknown session: %v", err)
	}
}
