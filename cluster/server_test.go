package cluster_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/actors"
	"trivet/cluster"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestHealthAndMetrics(t *testing.T) {
	c := clustertest.Start(t, 1, func(c *cluster.Config) { c.Admin = "127.0.0.1:0" })
	op := operatorsvc.NewOperatorClient(c.Conn(c.Servers[0], pki.RoleOperator, "op"))
	if _, err := op.PutConfig(testContext(t), &operatorv1.PutConfigRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	base := "http://" + c.Servers[0].Server.AdminAddress()
	for _, path := range []string{"/livez", "/readyz"} {
		if code, body := get(t, base+path); code != http.StatusOK {
			t.Errorf("%s answers %d %s", path, code, body)
		}
	}
	if code, _ := get(t, base+"/anything"); code != http.StatusNotFound {
		t.Errorf("another path answers %d", code)
	}
	_, body := get(t, base+"/metrics")
	for _, want := range []string{
		"trivet_raft_is_leader 1", "trivet_raft_has_leader 1", `trivet_fsm_objects{kind="config"} 1`, "trivet_raft_commands_total",
		`trivet_grpc_server_handled_total{code="OK",method="PutConfig",service="trivet.operator.v1.Operator"} 1`, `trivet_health{check="disk"} 0`, "trivet_build_info", "go_goroutines", "trivet_cert_expiry_seconds",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
}

// TestStartThatDoesNotSucceed leaves nothing behind and says why.
func TestStartThatDoesNotSucceed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	busy := taken.Addr().String()
	c := clustertest.Start(t, 1, nil)
	source := c.Source(pki.RoleServer, "server-9")
	good := cluster.Config{
		Name: "server-9", Listen: "127.0.0.1:0", Advertise: "127.0.0.1:1", Source: source, Keyring: c.Keyring, NoSync: true,
		Peers: []cluster.Peer{{Name: "server-9", Address: "127.0.0.1:1"}},
	}
	for name, x := range map[string]struct {
		change func(*cluster.Config)
		want   string
	}{
		"main port in use":  {func(c *cluster.Config) { c.Listen = busy }, "open the main port"},
		"admin port in use": {func(c *cluster.Config) { c.Admin = busy }, "open the admin port"},
		"data in use":       {func(x *cluster.Config) { x.DataDir = c.Servers[0].DataDir }, "another process has it open"},
	} {
		t.Run(name, func(t *testing.T) {
			conf := good
			conf.DataDir = t.TempDir()
			x.change(&conf)
			_, err := cluster.Start(conf)
			if err == nil || !strings.Contains(err.Error(), x.want) {
				t.Fatalf("got %v, want an error that says %q", err, x.want)
			}
			if strings.Contains(err.Error(), "closed network connection") {
				t.Errorf("%v also tells of its own clean-up", err)
			}
		})
	}
}

func TestConfigurationErrors(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	source := c.Source(pki.RoleServer, "server-1")
	good := cluster.Config{
		Name: "server-1", DataDir: "d", Advertise: "h:1", Source: source, Limits: actors.DefaultLimits(),
		Peers: []cluster.Peer{{"server-1", "h:1"}, {"server-2", "h:2"}, {"server-3", "h:3"}},
	}
	if err := good.Validate(); err != nil {
		t.Fatalf("a good configuration: %v", err)
	}
	for want, change := range map[string]func(*cluster.Config){
		"name is not set":           func(c *cluster.Config) { c.Name = "" },
		"dataDir is not set":        func(c *cluster.Config) { c.DataDir = "" },
		"not host:port":             func(c *cluster.Config) { c.Advertise = "host" },
		"no certificate":            func(c *cluster.Config) { c.Source = nil },
		"not for a server":          func(x *cluster.Config) { x.Source = c.Source(pki.RoleNode, "server-1") },
		`names "server-2"`:          func(c *cluster.Config) { c.Name = "server-2" },
		"peers and join are empty":  func(c *cluster.Config) { c.Peers = nil },
		"1, 3 or 5 servers":         func(c *cluster.Config) { c.Peers = c.Peers[:2] },
		"listed twice":              func(c *cluster.Config) { c.Peers = []cluster.Peer{c.Peers[0], c.Peers[0], c.Peers[1]} },
		"does not list this server": func(c *cluster.Config) { c.Peers = []cluster.Peer{{"server-2", "h:2"}} },
		"advertise says h:9":        func(c *cluster.Config) { c.Advertise = "h:9" },
	} {
		conf := good
		change(&conf)
		if err := conf.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error that says %q", err, want)
		}
		if _, err := cluster.Start(conf); err == nil {
			t.Errorf("a server started although %q", want)
		}
	}
}

// TestServersIntroduceOnlyThemselves: what they say becomes the configuration.
func TestServersIntroduceOnlyThemselves(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	peer := peersvc.NewPeerClient(c.Conn(c.Servers[0], pki.RoleServer, "server-9"))
	ctx := testContext(t)
	_, err := peer.Hello(ctx, &peerv1.HelloRequest{Server: &peerv1.ServerInfo{Id: "x", Name: "server-1"}})
	if errs.Code(err) != codes.PermissionDenied || errs.Reason(err) != "NOT_YOUR_NAME" {
		t.Errorf("a hello in another's name: %v (%s), want NOT_YOUR_NAME", err, errs.Reason(err))
	}
	if _, err := peer.Hello(ctx, new(peerv1.HelloRequest)); errs.Code(err) != codes.InvalidArgument {
		t.Errorf("an empty hello: %v, want InvalidArgument", err)
	}
	got, err := peer.Hello(ctx, &peerv1.HelloRequest{Server: &peerv1.ServerInfo{Id: "x", Name: "server-9"}})
	if err != nil || got.GetServer().GetName() != "server-1" || !got.GetServer().GetHasState() {
		t.Errorf("an honest hello: %v, %v", got, err)
	}
	for _, n := range []int{0, 257} {
		if _, err := peer.Propose(ctx, &peerv1.ProposeRequest{Commands: manyCommands(n)}); errs.Reason(err) != "BAD_BATCH" {
			t.Errorf("%d commands in one request: %v, want BAD_BATCH", n, err)
		}
	}
}

func TestWriteStreamAnswersInOrderAndEndsWithARefusal(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	op := operatorsvc.NewOperatorClient(c.Conn(c.Followers()[0], pki.RoleOperator, "op"))
	stream, err := op.PutConfigStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const n = 500
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			if err := stream.Send(&operatorv1.PutConfigRequest{Key: fmt.Sprintf("k%d", i), Value: []byte("v")}); err != nil {
				sent <- err
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	var revisions []uint64
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, m.GetRevision())
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if len(revisions) != n {
		t.Fatalf("%d answers, want %d", len(revisions), n)
	}
	for i, rev := range revisions {
		got, err := op.GetConfig(ctx, &operatorv1.GetConfigRequest{Key: fmt.Sprintf("k%d", i)})
		if err != nil || got.GetModifyRevision() != rev {
			t.Fatalf("answer %d says revision %d, the key has %d, %v", i, rev, got.GetModifyRevision(), err)
		}
	}
	bad, err := op.PutConfigStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := bad.Send(new(operatorv1.PutConfigRequest)); err != nil {
		t.Fatal(err)
	}
	if m, err := bad.Recv(); errs.Code(err) != codes.InvalidArgument {
		t.Errorf("a key without a name: %v, %v; want InvalidArgument", m, err)
	}
	c.SameDigests()
}

// TestDrainEndsStreamsThatDoNotEnd: a client that never lets go does not keep a
// server from stopping.
func TestDrainEndsStreamsThatDoNotEnd(t *testing.T) {
	c := clustertest.Start(t, 1, func(c *cluster.Config) { c.DrainTimeout = 300 * time.Millisecond })
	op := operatorsvc.NewOperatorClient(c.Conn(c.Servers[0], pki.RoleOperator, "op"))
	stream, err := op.PutConfigStream(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&operatorv1.PutConfigRequest{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c.Stop(c.Servers[0])
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if _, err := stream.Recv(); errs.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v, want Unavailable", err)
	}
}
