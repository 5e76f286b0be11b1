package cluster_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/actors"
	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/tunnel"
)

// fleet is a cluster with one node that reported the workload "echo" with one
// pod, whose agent is played by the test.
type fleet struct {
	*clustertest.Cluster
	t      *testing.T
	ctx    context.Context
	orders chan *nodev1.NodeOrders
}

const podUID = "pod-uid-1"

// shortLimits makes the leader's times short enough for tests to see them pass.
func shortLimits(c *cluster.Config) {
	l := actors.DefaultLimits()
	l.AgentPeriod, l.OlderAgentPeriod, l.EndedAgentPeriod = 60*time.Second, 2*time.Second, 2*time.Second
	l.OwnerGrace, l.FailoverGrace, l.Tick = 300*time.Millisecond, 600*time.Millisecond, 50*time.Millisecond
	c.Limits = l
}

func newFleet(t *testing.T, servers int, tune ...func(*cluster.Config)) *fleet {
	f := &fleet{Cluster: clustertest.Start(t, servers, func(c *cluster.Config) {
		for _, f := range tune {
			f(c)
		}
	}), t: t, ctx: testContext(t), orders: make(chan *nodev1.NodeOrders, 64)}
	stream, err := nodesvc.NewNodeControlClient(f.Conn(f.Servers[0], pki.RoleNode, "node-1")).Sync(f.ctx)
	if err != nil {
		t.Fatal(err)
	}
	must(t, stream.Send(&nodev1.NodeReport{
		Hello: &nodev1.NodeHello{Name: "node-1", BootId: "boot", Version: "v1", StealBackend: "proxy"},
		Workloads: &nodev1.Workloads{Workloads: []*commandv1.WorkloadReport{{
			Namespace: "default", Name: "echo", Kind: "Deployment",
			Pods: []*commandv1.Pod{{Name: "echo-0", Uid: podUID, Ip: "10.0.0.5", Containers: []*commandv1.Container{{
				Name: "app", Ports: []*commandv1.ContainerPort{{Name: "http", Port: 8080, Protocol: "TCP"}},
			}}}},
		}}},
	}))
	go func() {
		for {
			o, err := stream.Recv()
			if err != nil {
				return
			}
			f.orders <- o
		}
	}()
	<-f.orders
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fleet) manager(server int, role pki.Role, name string) managersvc.ManagerClient {
	return managersvc.NewManagerClient(f.Conn(f.Servers[server], role, name))
}

func (f *fleet) agentInfo() *manager.AgentInfo {
	return &manager.AgentInfo{
		Name: "echo", Namespace: "default", Kind: "Deployment", PodName: "echo-0", PodIp: "10.0.0.5", PodUid: podUID,
		Product: "telepresence", Version: "2.30.0", Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: "1"}},
	}
}

func (f *fleet) arriveAgent(m managersvc.ManagerClient) *manager.SessionInfo {
	f.t.Helper()
	s, err := m.ArriveAsAgent(f.ctx, f.agentInfo())
	must(f.t, err)
	return s
}

func clientInfo(name string) *manager.ClientInfo {
	return &manager.ClientInfo{Name: name, InstallId: "install-" + name, Product: "telepresence", Version: "2.30.0", Namespace: "default"}
}

func (f *fleet) arriveClient(m managersvc.ManagerClient, name string) *manager.SessionInfo {
	f.t.Helper()
	s, err := m.ArriveAsClient(f.ctx, clientInfo(name))
	must(f.t, err)
	return s
}

func spec(name string) *manager.InterceptSpec {
	return &manager.InterceptSpec{
		Name: name, Client: "alice", Agent: "echo", Namespace: "default", Mechanism: "tcp",
		TargetHost: "127.0.0.1", TargetPort: 9090, PortIdentifier: "http",
	}
}

func TestArrivalsAndWatches(t *testing.T) {
	f := newFleet(t, 3)
	alice := f.manager(1, pki.RoleClient, "alice")
	sess := f.arriveClient(alice, "alice")
	if sess.GetInstallId() != "install-alice" {
		t.Errorf("install id %q was not echoed", sess.GetInstallId())
	}
	agents, err := alice.WatchAgents(f.ctx, sess)
	must(t, err)
	if first, err := agents.Recv(); err != nil || len(first.GetAgents()) != 0 {
		t.Fatalf("first WatchAgents message: %v, %v; want an empty one", first, err)
	}
	intercepts, err := alice.WatchIntercepts(f.ctx, sess)
	must(t, err)
	if first, err := intercepts.Recv(); err != nil || len(first.GetIntercepts()) != 0 {
		t.Fatalf("first WatchIntercepts message: %v, %v; want an empty one", first, err)
	}
	node := f.manager(2, pki.RoleNode, "node-1")
	agent := f.arriveAgent(node)
	if agent.GetSessionId() != "agent:"+podUID {
		t.Errorf("agent session id %q, want it made of the pod's uid", agent.GetSessionId())
	}
	got, err := agents.Recv()
	must(t, err)
	if diff := cmp.Diff([]*manager.AgentInfo{f.agentInfo()}, got.GetAgents(), protocmp.Transform()); diff != "" {
		t.Errorf("WatchAgents shows another agent (-want +got):\n%s", diff)
	}
	if again := f.arriveAgent(node); again.GetSessionId() != agent.GetSessionId() {
		t.Errorf("arriving again gave session %q, want %q", again.GetSessionId(), agent.GetSessionId())
	}
	_, err = alice.Depart(f.ctx, sess)
	must(t, err)
	if _, err := agents.Recv(); err != io.EOF {
		t.Errorf("WatchAgents of a departed session ended with %v, want OK", err)
	}
	f.SameDigests()
}

func TestInterceptLife(t *testing.T) {
	f := newFleet(t, 3)
	alice, node := f.manager(0, pki.RoleClient, "alice"), f.manager(1, pki.RoleNode, "node-1")
	sess := f.arriveClient(alice, "alice")
	agent := f.arriveAgent(node)
	own, err := alice.WatchIntercepts(f.ctx, sess)
	must(t, err)
	theirs, err := node.WatchIntercepts(f.ctx, agent)
	must(t, err)
	next := func(s managersvc.Manager_WatchInterceptsClient, want ...manager.InterceptDispositionType) *manager.InterceptInfoSnapshot {
		t.Helper()
		for {
			m, err := s.Recv()
			must(t, err)
			if len(m.GetIntercepts()) != len(want) {
				continue
			}
			same := true
			for i := range want {
				same = same && m.GetIntercepts()[i].GetDisposition() == want[i]
			}
			if same {
				return m
			}
		}
	}
	next(own)
	next(theirs)
	// The owner's dial stream says that the owner is there.
	dials, err := alice.WatchDial(f.ctx, sess)
	must(t, err)
	_, err = dials.Header()
	must(t, err)

	created, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	if created.GetDisposition() != manager.InterceptDispositionType_WAITING || created.GetId() != sess.GetSessionId()+":one" {
		t.Errorf("created %s in %s", created.GetId(), created.GetDisposition())
	}
	next(own, manager.InterceptDispositionType_WAITING)
	next(theirs, manager.InterceptDispositionType_WAITING)
	_, err = node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: created.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.5",
		Environment: map[string]string{"SECRET": "x"},
	})
	must(t, err)
	if got := next(own, manager.InterceptDispositionType_ACTIVE).GetIntercepts()[0]; got.GetEnvironment()["SECRET"] != "x" || got.GetPodName() != "echo-0" {
		t.Errorf("the owner does not see environment and pod: %v", got)
	}
	if got := next(theirs, manager.InterceptDispositionType_ACTIVE).GetIntercepts()[0]; len(got.GetEnvironment()) != 0 {
		t.Errorf("an agent sees the environment: %v", got.GetEnvironment())
	}
	// A second one on the taken port.
	bob := f.manager(2, pki.RoleClient, "bob")
	bobs := f.arriveClient(bob, "bob")
	other := spec("two")
	other.Client = "bob"
	_, err = bob.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: bobs, InterceptSpec: other})
	if errs.Code(err) != codes.FailedPrecondition || errs.Reason(err) != "INTERCEPT_CONFLICT" {
		t.Errorf("a second intercept on a taken port: %v (%s)", err, errs.Reason(err))
	}
	prepared, err := bob.PrepareIntercept(f.ctx, &manager.CreateInterceptRequest{Session: bobs, InterceptSpec: other})
	must(t, err)
	if prepared.GetErrorCategory() != 1 || !strings.Contains(prepared.GetError(), created.GetId()) {
		t.Errorf("PrepareIntercept of a taken port says %v", prepared)
	}
	// Only the owner may touch it.
	if _, err := bob.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "one"}); errs.Code(err) != codes.PermissionDenied {
		t.Errorf("bob removes alice's intercept: %v, want PermissionDenied", err)
	}
	if _, err := bob.GetIntercept(f.ctx, &manager.GetInterceptRequest{Name: created.GetId()}); errs.Code(err) != codes.PermissionDenied {
		t.Errorf("bob reads alice's intercept: %v, want PermissionDenied", err)
	}
	_, err = alice.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "one"})
	must(t, err)
	next(own)
	next(theirs)
	f.SameDigests()
}

// TestOwnerGoesAwayAndComesBack: the record stays, the agents stop seeing it,
// and it is approved again.
func TestOwnerGoesAwayAndComesBack(t *testing.T) {
	f := newFleet(t, 1, shortLimits)
	alice, node := f.manager(0, pki.RoleClient, "alice"), f.manager(0, pki.RoleNode, "node-1")
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[0], pki.RoleOperator, "op"))
	sess := f.arriveClient(alice, "alice")
	agent := f.arriveAgent(node)
	dctx, away := context.WithCancel(f.ctx)
	dials, err := alice.WatchDial(dctx, sess)
	must(t, err)
	_, err = dials.Header()
	must(t, err)
	created, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	review := &manager.ReviewInterceptRequest{Session: agent, Id: created.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.5"}
	_, err = node.ReviewIntercept(f.ctx, review)
	must(t, err)
	state := func(want string) {
		t.Helper()
		clustertest.Eventually(t, "owner state "+want, func() bool {
			got, err := op.GetIntercept(f.ctx, &operatorv1.GetInterceptRequest{Name: created.GetId()})
			must(t, err)
			if got.GetDisposition() != "ACTIVE" {
				t.Fatalf("the owner sees %s", got.GetDisposition())
			}
			return got.GetOwnerState() == want
		})
	}
	state("PRESENT")
	away()
	state("AWAY")
	watch, err := node.WatchIntercepts(f.ctx, agent)
	must(t, err)
	if m, err := watch.Recv(); err != nil || len(m.GetIntercepts()) != 0 {
		t.Fatalf("the agent sees %v, %v while the owner is away", m, err)
	}
	dials, err = alice.WatchDial(f.ctx, sess)
	must(t, err)
	_, err = dials.Header()
	must(t, err)
	m, err := watch.Recv()
	must(t, err)
	if len(m.GetIntercepts()) != 1 || m.GetIntercepts()[0].GetDisposition() != manager.InterceptDispositionType_WAITING {
		t.Fatalf("the agent sees %v when the owner is back", m)
	}
	_, err = node.ReviewIntercept(f.ctx, review)
	must(t, err)
	state("PRESENT")
}

func TestTunnelEndsOnEveryPairOfServers(t *testing.T) {
	f := newFleet(t, 3)
	for agentAt := range 3 {
		for clientAt := range 3 {
			f.tunnel(agentAt, clientAt)
		}
	}
}

// tunnel sends bytes both ways through a tunnel whose ends are attached to the
// given servers, with a half close in each direction.
func (f *fleet) tunnel(agentAt, clientAt int) {
	t := f.t
	alice, node := f.manager(clientAt, pki.RoleClient, "alice"), f.manager(agentAt, pki.RoleNode, "node-1")
	sess, agent := f.arriveClient(alice, "alice"), f.arriveAgent(node)
	defer alice.Depart(f.ctx, sess)
	dials, err := alice.WatchDial(f.ctx, sess)
	must(t, err)
	_, err = alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("t")})
	must(t, err)

	id, err := tunnel.NewConnID(tunnel.TCP, addrPort("10.0.0.9:40000"), addrPort("127.0.0.1:9090"))
	must(t, err)
	up, err := node.Tunnel(f.ctx)
	must(t, err)
	_, err = tunnel.Open(f.ctx, up, tunnel.StreamInfo{ConnID: id, SessionID: agent.GetSessionId(), DialTimeout: 5 * time.Second}, sess.GetSessionId())
	must(t, err)
	t.Logf("agent on %d, client on %d", agentAt, clientAt)
	req, err := dials.Recv()
	must(t, err)
	if string(req.GetConnId()) != string(id) {
		t.Fatalf("the dial request is for %x, want %x", req.GetConnId(), id)
	}
	down, err := alice.Tunnel(f.ctx)
	must(t, err)
	_, err = tunnel.Open(f.ctx, down, tunnel.StreamInfo{ConnID: id, SessionID: sess.GetSessionId()}, "")
	must(t, err)
	must(t, down.Send(tunnel.NewDialOK()))
	must(t, tunnel.WaitDialOK(f.ctx, up))
	must(t, up.Send(tunnel.NewNormal([]byte("request"))))
	must(t, up.CloseSend())
	f.expect(down, tunnel.CodeNormal, "request")
	f.expect(down, tunnel.CodeCloseSend, "")
	// The direction back stays open after the half close.
	must(t, down.Send(tunnel.NewNormal([]byte("response"))))
	must(t, down.CloseSend())
	f.expect(up, tunnel.CodeNormal, "response")
	f.expect(up, tunnel.CodeCloseSend, "")
	for name, s := range map[string]managersvc.Manager_TunnelClient{"agent": up, "client": down} {
		if m, err := s.Recv(); err != io.EOF {
			t.Errorf("agent on %d, client on %d: the %s's stream ends with %v, %v; want OK", agentAt, clientAt, name, m, err)
		}
	}
}

func (f *fleet) expect(s managersvc.Manager_TunnelClient, code tunnel.Code, body string) {
	f.t.Helper()
	m, err := s.Recv()
	must(f.t, err)
	fr, err := tunnel.ParseFrame(m.GetPayload())
	must(f.t, err)
	if fr.Code != code || string(fr.Body) != body {
		f.t.Fatalf("got frame %s %q, want %s %q", fr.Code, fr.Body, code, body)
	}
}

func TestBadInput(t *testing.T) {
	f := newFleet(t, 1)
	alice, node := f.manager(0, pki.RoleClient, "alice"), f.manager(0, pki.RoleNode, "node-1")
	sess := f.arriveClient(alice, "alice")
	agent := f.arriveAgent(node)
	nobody := &manager.SessionInfo{SessionId: "no-such-session"}
	without := func(change func(*manager.InterceptSpec)) *manager.CreateInterceptRequest {
		s := spec("bad")
		change(s)
		return &manager.CreateInterceptRequest{Session: sess, InterceptSpec: s}
	}
	type want struct {
		code   codes.Code
		reason string
	}
	for name, c := range map[string]struct {
		call func() error
		want want
	}{
		"client without name": {func() error { _, err := alice.ArriveAsClient(f.ctx, &manager.ClientInfo{}); return err }, want{codes.InvalidArgument, ""}},
		"agent without name":  {func() error { _, err := node.ArriveAsAgent(f.ctx, &manager.AgentInfo{}); return err }, want{codes.InvalidArgument, ""}},
		"agent of an unknown pod": {func() error {
			i := f.agentInfo()
			i.PodUid = "other"
			_, err := node.ArriveAsAgent(f.ctx, i)
			return err
		}, want{codes.PermissionDenied, "NOT_YOUR_POD"}},
		"remain without session":    {func() error { _, err := alice.Remain(f.ctx, &manager.RemainRequest{}); return err }, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"remain of unknown session": {func() error { _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: nobody}); return err }, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"remain of another's":       {func() error { _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: agent}); return err }, want{codes.PermissionDenied, "SESSION_NOT_YOURS"}},
		"reconnect unknown client": {func() error {
			_, err := alice.ReconnectClient(f.ctx, &manager.ReconnectClientRequest{Session: nobody, Client: clientInfo("alice")})
			return err
		}, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"reconnect unknown agent": {func() error {
			_, err := node.ReconnectAgent(f.ctx, &manager.ReconnectAgentRequest{Session: nobody, Agent: f.agentInfo()})
			return err
		}, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"depart without session": {func() error { _, err := alice.Depart(f.ctx, &manager.SessionInfo{}); return err }, want{codes.OK, ""}},
		"depart unknown":         {func() error { _, err := alice.Depart(f.ctx, nobody); return err }, want{codes.OK, ""}},
		"create without spec": {func() error {
			_, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"create without name": {func() error {
			_, err := alice.CreateIntercept(f.ctx, without(func(s *manager.InterceptSpec) { s.Name = "" }))
			return err
		}, want{codes.InvalidArgument, ""}},
		"create without mechanism": {func() error {
			_, err := alice.CreateIntercept(f.ctx, without(func(s *manager.InterceptSpec) { s.Mechanism = "" }))
			return err
		}, want{codes.InvalidArgument, ""}},
		"create for host name": {func() error {
			_, err := alice.CreateIntercept(f.ctx, without(func(s *manager.InterceptSpec) { s.TargetHost = "localhost" }))
			return err
		}, want{codes.InvalidArgument, ""}},
		"create for unknown": {func() error {
			_, err := alice.CreateIntercept(f.ctx, without(func(s *manager.InterceptSpec) { s.Agent = "nope" }))
			return err
		}, want{codes.NotFound, "WORKLOAD_NOT_FOUND"}},
		"create in unknown session": {func() error {
			_, err := alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: nobody, InterceptSpec: spec("x")})
			return err
		}, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"prepare without session": {func() error {
			_, err := alice.PrepareIntercept(f.ctx, &manager.CreateInterceptRequest{InterceptSpec: spec("x")})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"prepare without spec": {func() error {
			_, err := alice.PrepareIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"ensure without name": {func() error {
			_, err := alice.EnsureAgent(f.ctx, &manager.EnsureAgentRequest{Session: sess})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"ensure unknown workload": {func() error {
			_, err := alice.EnsureAgent(f.ctx, &manager.EnsureAgentRequest{Session: sess, Name: "nope"})
			return err
		}, want{codes.NotFound, "WORKLOAD_NOT_FOUND"}},
		"remove without name": {func() error {
			_, err := alice.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"remove in unknown session": {func() error {
			_, err := alice.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: nobody, Name: "x"})
			return err
		}, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"remove unknown name": {func() error {
			_, err := alice.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "x"})
			return err
		}, want{codes.OK, ""}},
		"get without name": {func() error { _, err := alice.GetIntercept(f.ctx, &manager.GetInterceptRequest{}); return err }, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"get unknown": {func() error {
			_, err := alice.GetIntercept(f.ctx, &manager.GetInterceptRequest{Session: sess, Name: "x"})
			return err
		}, want{codes.NotFound, "INTERCEPT_NOT_FOUND"}},
		"review without id": {func() error {
			_, err := node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{Session: agent})
			return err
		}, want{codes.InvalidArgument, "MISSING_FIELD"}},
		"review of unknown": {func() error {
			_, err := node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{Session: agent, Id: "x"})
			return err
		}, want{codes.NotFound, ""}},
		"unimplemented rpc":     {func() error { _, err := alice.GetLicense(f.ctx, &emptypb.Empty{}); return err }, want{codes.Unimplemented, ""}},
		"watch dial of unknown": {func() error { s, err := alice.WatchDial(f.ctx, nobody); must(t, err); _, err = s.Recv(); return err }, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"watch all as a client": {func() error {
			s, err := alice.WatchIntercepts(f.ctx, &manager.SessionInfo{})
			must(t, err)
			_, err = s.Recv()
			return err
		}, want{codes.PermissionDenied, "SESSION_REQUIRED"}},
		"watch agents of unknown":   {func() error { s, err := alice.WatchAgents(f.ctx, nobody); must(t, err); _, err = s.Recv(); return err }, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"tunnel with empty payload": {func() error { return f.badTunnel(alice, &manager.TunnelMessage{}) }, want{codes.FailedPrecondition, "TUNNEL_HANDSHAKE"}},
		"tunnel with garbage":       {func() error { return f.badTunnel(alice, &manager.TunnelMessage{Payload: []byte{1, 2, 3}}) }, want{codes.FailedPrecondition, "TUNNEL_HANDSHAKE"}},
		"tunnel with a short id": {func() error {
			return f.badTunnel(alice, &manager.TunnelMessage{Payload: []byte("\x01\x02\x00\x00\x03abc\x01x")})
		}, want{codes.FailedPrecondition, "TUNNEL_HANDSHAKE"}},
		"tunnel of unknown session":  {func() error { return f.badTunnel(alice, info(t, "nope")) }, want{codes.NotFound, "SESSION_NOT_FOUND"}},
		"tunnel that nobody awaits":  {func() error { return f.badTunnel(alice, info(t, sess.GetSessionId())) }, want{codes.FailedPrecondition, "TUNNEL_NO_PEER"}},
		"tunnel of another session":  {func() error { return f.badTunnel(alice, info(t, agent.GetSessionId())) }, want{codes.PermissionDenied, "SESSION_NOT_YOURS"}},
		"agent tunnel, not Session":  {func() error { return f.badTunnel(node, info(t, agent.GetSessionId()), tunnel.NewNormal([]byte("x"))) }, want{codes.FailedPrecondition, "TUNNEL_HANDSHAKE"}},
		"agent tunnel, wrong client": {func() error { return f.badTunnel(node, info(t, agent.GetSessionId()), tunnel.NewSession("nope")) }, want{codes.Canceled, "SESSION_NOT_FOUND"}},
		"agent tunnel, no intercept": {func() error {
			return f.badTunnel(node, info(t, agent.GetSessionId()), tunnel.NewSession(sess.GetSessionId()))
		}, want{codes.PermissionDenied, "NO_INTERCEPT"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.call()
			if errs.Code(err) != c.want.code || (c.want.reason != "" && errs.Reason(err) != c.want.reason) {
				t.Errorf("got %v (%s, %s), want %s %s", err, errs.Code(err), errs.Reason(err), c.want.code, c.want.reason)
			}
		})
	}
	// Nothing of it cost the session anything.
	if _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: sess}); err != nil {
		t.Errorf("the session is gone after all that: %v", err)
	}
	f.SameDigests()
}

func info(t *testing.T, session string) *manager.TunnelMessage {
	id, err := tunnel.NewConnID(tunnel.TCP, addrPort("10.0.0.9:40000"), addrPort("127.0.0.1:9090"))
	must(t, err)
	m, err := tunnel.NewStreamInfo(tunnel.StreamInfo{ConnID: id, SessionID: session})
	must(t, err)
	return m
}

// badTunnel sends frames and returns how the stream ends.
func (f *fleet) badTunnel(m managersvc.ManagerClient, frames ...*manager.TunnelMessage) error {
	s, err := m.Tunnel(f.ctx)
	must(f.t, err)
	for _, fr := range frames {
		if s.Send(fr) != nil {
			break
		}
	}
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}
