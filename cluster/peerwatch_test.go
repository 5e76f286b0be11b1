package cluster_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/settings"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// receiver is the reading end of a watch.
type receiver[M any] interface{ Recv() (*M, error) }

func receive[M any](t *testing.T, w receiver[M], err error) *M {
	t.Helper()
	must(t, err)
	m, err := w.Recv()
	must(t, err)
	return m
}

// TestDeltaWatches: each starts with all there is, and goes on with what
// changes, on any server.
func TestDeltaWatches(t *testing.T) {
	f := newFleet(t, 3)
	alice, node := f.manager(1, pki.RoleClient, "alice"), f.manager(2, pki.RoleNode, "node-1")
	sess := f.arriveClient(alice, "alice")
	agents, err := alice.WatchAgentsDelta(f.ctx, sess)
	if d := receive(t, agents, err); len(d.GetUpserts())+len(d.GetRemovals()) != 0 {
		t.Errorf("agents at first: %v", d)
	}
	pods, err := alice.WatchAgentPodsDelta(f.ctx, sess)
	if d := receive(t, pods, err); len(d.GetUpserts())+len(d.GetRemovals()) != 0 {
		t.Errorf("pods at first: %v", d)
	}
	elsewhere, err := alice.WatchAgentPodsInNamespacesDelta(f.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{"other"}})
	receive(t, elsewhere, err)
	here, err := alice.WatchAgentPodsInNamespacesDelta(f.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{""}})
	receive(t, here, err)
	mine, err := alice.WatchInterceptsDelta(f.ctx, sess)
	if d := receive(t, mine, err); len(d.GetUpserts())+len(d.GetRemovals()) != 0 {
		t.Errorf("intercepts at first: %v", d)
	}
	workloads, err := alice.WatchWorkloads(f.ctx, &manager.WorkloadEventsRequest{SessionInfo: sess})
	want := []*manager.WorkloadEvent{{Type: manager.WorkloadEvent_ADDED_UNSPECIFIED, Workload: &manager.WorkloadInfo{
		Kind: manager.WorkloadInfo_DEPLOYMENT, Name: "echo", Namespace: "default", State: manager.WorkloadInfo_AVAILABLE, DesiredReplicas: 1, ReadyReplicas: 1,
	}}}
	if diff := cmp.Diff(want, receive(t, workloads, err).GetEvents(), protocmp.Transform()); diff != "" {
		t.Errorf("workloads at first (-want +got):\n%s", diff)
	}
	want[0].Type = manager.WorkloadEvent_MODIFIED

	agent := f.arriveAgent(node)
	id := agent.GetSessionId()
	if diff := cmp.Diff(map[string]*manager.AgentInfo{id: f.agentInfo()}, receive(t, agents, nil).GetUpserts(), protocmp.Transform()); diff != "" {
		t.Errorf("agents (-want +got):\n%s", diff)
	}
	pod := &manager.AgentPodInfo{PodName: "echo-0", Namespace: "default", PodIp: []byte{10, 0, 0, 5}, WorkloadName: "echo", PodId: podUID}
	for name, w := range map[string]receiver[manager.AgentPodInfoDelta]{"own namespace": pods, "an empty entry": here} {
		if diff := cmp.Diff(map[string]*manager.AgentPodInfo{id: pod}, receive(t, w, nil).GetUpserts(), protocmp.Transform()); diff != "" {
			t.Errorf("pods in %s (-want +got):\n%s", name, diff)
		}
	}
	want[0].Workload.AgentState = manager.WorkloadInfo_INSTALLED
	d := receive(t, workloads, nil)
	if diff := cmp.Diff(want, d.GetEvents(), protocmp.Transform()); diff != "" || d.GetSince() == nil {
		t.Errorf("workloads with an agent, since %v (-want +got):\n%s", d.GetSince(), diff)
	}

	created, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	if got := receive(t, mine, nil).GetUpserts()[created.GetId()]; got.GetDisposition() != manager.InterceptDispositionType_WAITING {
		t.Errorf("the new intercept is %v", got)
	}
	if got := receive(t, pods, nil).GetUpserts()[id]; !got.GetIntercepted() {
		t.Errorf("the pod of an intercepted workload is %v", got)
	}
	_, err = node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: created.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.5",
		Environment: map[string]string{"COLOUR": "blue"},
	})
	must(t, err)
	if got := receive(t, mine, nil).GetUpserts()[created.GetId()]; got.GetDisposition() != manager.InterceptDispositionType_ACTIVE {
		t.Errorf("the approved intercept is %v", got)
	}
	want[0].Workload.AgentState = manager.WorkloadInfo_INTERCEPTED
	want[0].Workload.InterceptClients = []*manager.WorkloadInfo_Intercept{{Client: "alice"}}
	if diff := cmp.Diff(want, receive(t, workloads, nil).GetEvents(), protocmp.Transform()); diff != "" {
		t.Errorf("an intercepted workload (-want +got):\n%s", diff)
	}

	_, err = alice.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "one"})
	must(t, err)
	if got := receive(t, mine, nil); fmt.Sprint(got.GetRemovals()) != fmt.Sprint([]string{created.GetId()}) || len(got.GetUpserts()) > 0 {
		t.Errorf("after the removal: %v", got)
	}
	if got := receive(t, pods, nil).GetUpserts()[id]; got.GetIntercepted() {
		t.Error("the pod is still intercepted")
	}
	receive(t, workloads, nil)
	_, err = node.Depart(f.ctx, agent)
	must(t, err)
	if got := receive(t, agents, nil).GetRemovals(); fmt.Sprint(got) != fmt.Sprint([]string{id}) {
		t.Errorf("agents that left: %v", got)
	}
	if got := receive(t, pods, nil).GetRemovals(); fmt.Sprint(got) != fmt.Sprint([]string{id}) {
		t.Errorf("pods that left: %v", got)
	}
	_, err = alice.Depart(f.ctx, sess)
	must(t, err)
	// A watch of another namespace has had nothing to say.
	if m, err := elsewhere.Recv(); err == nil {
		t.Errorf("another namespace: %v", m)
	}
	f.SameDigests()
}

// TestWhatOperatorsWriteForPeers: clients are told what the configuration says,
// and a variable that it excludes leaves no pod.
func TestWhatOperatorsWriteForPeers(t *testing.T) {
	f := newFleet(t, 3)
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[0], pki.RoleOperator, "olga"))
	alice, node := f.manager(1, pki.RoleClient, "alice"), f.manager(2, pki.RoleNode, "node-1")
	sess := f.arriveClient(alice, "alice")
	put := func(key, value string) error {
		_, err := op.PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: key, Value: []byte(value)})
		return err
	}
	info, err := alice.WatchClusterInfo(f.ctx, sess)
	first := receive(t, info, err)
	pod := []*manager.IPNet{{Ip: []byte{10, 0, 0, 0}, Mask: 24}}
	if diff := cmp.Diff(pod, first.GetPodSubnets(), protocmp.Transform()); diff != "" || first.GetDns().GetClusterDomain() != "cluster.local." {
		t.Errorf("domain %q, subnets of pods (-want +got):\n%s", first.GetDns().GetClusterDomain(), diff)
	}
	must(t, put(settings.KeyClusterInfo, "serviceSubnets: [10.96.0.0/12]\nclusterDomain: corp\nneverProxy: [10.96.0.1/32]\n"))
	next := receive(t, info, nil)
	service := netip.MustParsePrefix("10.96.0.0/12")
	raw, err := service.MarshalBinary()
	must(t, err)
	if len(next.GetServiceCidrs()) != 1 || string(next.GetServiceCidrs()[0]) != string(raw) || next.GetServiceSubnet().GetMask() != 12 ||
		next.GetClusterDomain() != "corp." || len(next.GetRouting().GetNeverProxySubnets()) != 1 {
		t.Errorf("after the change: %v", next)
	}
	if err := put(settings.KeyClusterInfo, "serviceSubnets: [10.96.0.1/12]"); errs.Code(err) != codes.InvalidArgument {
		t.Errorf("a description that cannot be read: %v", err)
	}
	must(t, put(settings.KeyClientConfig, "timeouts: {intercept: 30s}\n"))
	if c, err := alice.GetClientConfig(f.ctx, new(emptypb.Empty)); err != nil || string(c.GetConfigYaml()) != "timeouts: {intercept: 30s}\n" {
		t.Errorf("client configuration %v, %v", c, err)
	}

	must(t, put(settings.KeyExcludedEnvironment, "PASSWORD\n"))
	agent := f.arriveAgent(node)
	created, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	_, err = node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: created.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.5",
		Environment: map[string]string{"COLOUR": "blue", "PASSWORD": "x"},
	})
	must(t, err)
	got, err := alice.GetIntercept(f.ctx, &manager.GetInterceptRequest{Session: sess, Name: "one"})
	must(t, err)
	if diff := cmp.Diff(map[string]string{"COLOUR": "blue"}, got.GetEnvironment()); diff != "" {
		t.Errorf("the environment (-want +got):\n%s", diff)
	}

	config, err := alice.GetAgentConfig(f.ctx, &manager.AgentConfigRequest{Session: sess, Name: "echo"})
	must(t, err)
	for _, line := range []string{"agentName: echo", "workloadKind: Deployment", "containerPort: 8080", "envPrefix: A_", "agentPort: 9900"} {
		if !strings.Contains(string(config.GetData()), line+"\n") {
			t.Errorf("the agent's configuration lacks %q:\n%s", line, config.GetData())
		}
	}
	if _, err := alice.GetAgentConfig(f.ctx, &manager.AgentConfigRequest{Session: sess, Name: "nope"}); errs.Code(err) != codes.NotFound {
		t.Errorf("of an unknown workload: %v", err)
	}
}
