package cluster_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// plaintext connects to a server as published peers do.
func (f *fleet) plaintext(server int) *grpc.ClientConn {
	f.t.Helper()
	conn, err := grpc.NewClient(f.Servers[server].Server.CompatAddr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(f.t, err)
	f.t.Cleanup(func() { conn.Close() })
	return conn
}

func withCompat(c *cluster.Config) {
	c.Compat = cluster.Compat{Listen: "127.0.0.1:0", Clients: true, Agents: true, Namespaces: []string{"default"}}
}

func wantCode(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%s: %v, want %v %q", what, err, code, text)
	}
}

// TestCompatPeersWorkEndToEnd: an older agent and a client without certificates,
// on different servers, up to the bytes of a connection.
func TestCompatPeersWorkEndToEnd(t *testing.T) {
	f := newFleet(t, 3, withCompat)
	agentSide, clientSide := managersvc.NewManagerClient(f.plaintext(0)), managersvc.NewManagerClient(f.plaintext(1))
	h, err := healthpb.NewHealthClient(f.plaintext(2)).Check(f.ctx, &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	info := &manager.AgentInfo{
		Name: "legacy", Namespace: "default", PodName: "legacy-0", PodIp: "10.0.0.9", ApiPort: 9999, Product: "telepresence", Version: "2.20.2",
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: "2.20.2"}},
	}
	agent, err := agentSide.ArriveAsAgent(f.ctx, info)
	must(t, err)
	agentWatch, err := agentSide.WatchIntercepts(f.ctx, agent)
	receive(t, agentWatch, err)
	if _, err := agentSide.Remain(f.ctx, &manager.RemainRequest{Session: agent}); err != nil {
		t.Errorf("keepalive of the agent: %v", err)
	}
	client := &manager.ClientInfo{Name: "alice@laptop", InstallId: "i", Product: "telepresence", Version: "2.20.2", Namespace: "default"}
	sess, err := clientSide.ArriveAsClient(f.ctx, client)
	must(t, err)
	dials, err := clientSide.WatchDial(f.ctx, sess)
	must(t, err)
	_, err = dials.Header()
	must(t, err)
	spec := &manager.InterceptSpec{
		Name: "mine", Client: "alice@laptop", Agent: "legacy", Namespace: "default", Mechanism: "tcp", TargetHost: "127.0.0.1", TargetPort: 8080,
		PortIdentifier: "8080",
	}
	made, err := clientSide.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec})
	must(t, err)
	if made.GetDisposition() != manager.InterceptDispositionType_WAITING {
		t.Errorf("made %v", made)
	}
	for {
		snap := receive(t, agentWatch, nil)
		if len(snap.GetIntercepts()) == 1 {
			break
		}
	}
	_, err = agentSide.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: made.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.9",
	})
	must(t, err)
	got, err := clientSide.GetIntercept(f.ctx, &manager.GetInterceptRequest{Session: sess, Name: "mine"})
	if err != nil || got.GetDisposition() != manager.InterceptDispositionType_ACTIVE {
		t.Errorf("after the review: %v, %v", got, err)
	}
	// It is marked, and an operator can tell.
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[2], pki.RoleOperator, "root"))
	list, err := op.ListIntercepts(f.ctx, &operatorv1.ListInterceptsRequest{})
	if err != nil || len(list.GetIntercepts()) != 1 || !strings.Contains(list.GetIntercepts()[0].GetIdentity(), "/client/compat:127.0.0.1") {
		t.Errorf("an operator sees %v, %v", list, err)
	}
	_, err = clientSide.RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "mine"})
	must(t, err)
	for _, depart := range []func() error{
		func() error { _, err := clientSide.Depart(f.ctx, sess); return err },
		func() error { _, err := agentSide.Depart(f.ctx, agent); return err },
	} {
		must(t, depart())
	}
	for err == nil {
		_, err = agentWatch.Recv()
	}
	if err != io.EOF {
		t.Errorf("the agent's watch ended with %v", err)
	}
}

// TestCompatPeersAreConfined: they see and do nothing beyond what was asked for.
func TestCompatPeersAreConfined(t *testing.T) {
	f := newFleet(t, 3, withCompat)
	conn := f.plaintext(0)
	stock := managersvc.NewManagerClient(conn)
	sess, err := stock.ArriveAsClient(f.ctx, &manager.ClientInfo{Name: "eve@laptop", InstallId: "i", Product: "telepresence", Version: "2.20.2", Namespace: "default"})
	must(t, err)
	alice := f.manager(1, pki.RoleClient, "alice")
	hers := f.arriveClient(alice, "alice")

	_, err = stock.ArriveAsClient(f.ctx, &manager.ClientInfo{Name: "eve", InstallId: "i", Product: "telepresence", Version: "2.20.2", Namespace: "secret"})
	wantCode(t, "a client of another namespace", err, codes.FailedPrecondition, "namespace secret is not managed")
	_, err = stock.ArriveAsClient(f.ctx, &manager.ClientInfo{Name: "eve", InstallId: "i", Product: "telepresence", Version: "2.20.2"})
	wantCode(t, "a client of all namespaces", err, codes.FailedPrecondition, "is not managed")
	agent := f.agentInfo()
	_, err = stock.ArriveAsAgent(f.ctx, agent)
	wantCode(t, "an agent of a workload that a node has reported", err, codes.PermissionDenied, "runs on a node")
	agent.Namespace, agent.Name = "secret", "x"
	_, err = stock.ArriveAsAgent(f.ctx, agent)
	wantCode(t, "an agent of another namespace", err, codes.FailedPrecondition, "is not managed")

	// Sessions of peers with certificates are none to them.
	_, err = stock.Remain(f.ctx, &manager.RemainRequest{Session: hers})
	wantCode(t, "somebody's keepalive", err, codes.NotFound, "not found")
	_, err = stock.Depart(f.ctx, hers)
	must(t, err)
	if _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: hers}); err != nil {
		t.Errorf("alice was departed by somebody without a certificate: %v", err)
	}
	all, err := stock.WatchIntercepts(f.ctx, new(manager.SessionInfo))
	must(t, err)
	_, err = all.Recv()
	wantCode(t, "all intercepts", err, codes.PermissionDenied, "")
	pods, err := stock.WatchAgentPodsInNamespacesDelta(f.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{"secret"}})
	must(t, err)
	_, err = pods.Recv()
	wantCode(t, "pods of another namespace", err, codes.FailedPrecondition, "is not managed")

	spec := func() *manager.InterceptSpec {
		return &manager.InterceptSpec{
			Name: "e", Client: "eve@laptop", Agent: "echo", Namespace: "default", Mechanism: "tcp", TargetHost: "127.0.0.1", TargetPort: 1, PortIdentifier: "http",
		}
	}
	elsewhere, replace := spec(), spec()
	elsewhere.Namespace, replace.Replace = "secret", true
	_, err = stock.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: elsewhere})
	wantCode(t, "an intercept in another namespace", err, codes.FailedPrecondition, "is not managed")
	node := f.manager(2, pki.RoleNode, "node-1")
	_, err = node.ArriveAsAgent(f.ctx, f.agentInfo())
	must(t, err)
	_, err = stock.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: replace})
	wantCode(t, "replacing a container", err, codes.PermissionDenied, "without a certificate")

	// Other services, and what changes the cluster, are not there.
	_, err = operatorsvc.NewOperatorClient(conn).Status(f.ctx, new(operatorv1.StatusRequest))
	wantCode(t, "the operator service", err, codes.Unimplemented, "")
	_, err = stock.SetLogLevel(f.ctx, &manager.LogLevelRequest{LogLevel: "debug"})
	wantCode(t, "the log level", err, codes.Unimplemented, "")
	_, err = stock.UninstallAgents(f.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess})
	wantCode(t, "uninstalling agents", err, codes.Unimplemented, "")
	if _, err := stock.Version(f.ctx, new(emptypb.Empty)); err != nil {
		t.Errorf("version: %v", err)
	}
	// The main port is not for them.
	main, err := grpc.NewClient(f.Servers[0].Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	defer main.Close()
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	if _, err := managersvc.NewManagerClient(main).Version(ctx, new(emptypb.Empty)); err == nil {
		t.Error("the main port serves peers without certificates")
	}
}

func TestCompatIsOffUnlessAskedFor(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	if a := c.Servers[0].Server.CompatAddr(); a != nil {
		t.Errorf("there is a listener at %s", a)
	}
	for name, bad := range map[string]cluster.Compat{
		"no namespace": {Listen: ":8081", Clients: true},
		"nobody":       {Listen: ":8081", Namespaces: []string{"*"}},
		"no port":      {Listen: "here", Agents: true, Namespaces: []string{"*"}},
	} {
		cfg := cluster.Config{Name: "server-1", DataDir: t.TempDir(), Advertise: "127.0.0.1:1", Compat: bad}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "compat") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
