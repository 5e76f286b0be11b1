package systest

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trivet/client"
	"trivet/cmd/trivet/bundles"
	"trivet/cmd/trivet/devenv"
	"trivet/internal/config"
	"trivet/internal/netns/netnstest"
	"trivet/node/steal"
)

// Contexts of a cluster's context file, by identity. The first is the current
// one.
const (
	ClientContext      = "dev"
	OperatorContext    = "dev-operator"
	OtherClientContext = "bob"
)

// The app of a cluster.
const (
	Namespace = devenv.SampleNamespace
	Workload  = "web"
	PortName  = "http"
	port      = 8080
	// A second port of the app, for who is not in the first one's way.
	AdminPortName = "admin"
	adminPort     = 8081
)

// NodeName is the node's, in its certificate too.
const NodeName = "node-1"

const (
	startTimeout = 45 * time.Second
	leafTTL      = 24 * time.Hour
)

// Cluster is a running manager with a node, an app and a visitor.
type Cluster struct {
	// Dir holds everything.
	Dir string
	// Started is when the first leader was there.
	Started time.Time
	// Dev has the servers, Ops asks each of them by itself.
	Dev *devenv.Env
	Ops *devenv.Operators
	// Node is the node's holder, the last one that was started.
	Node *Process
	// Pod is the app's place, Visitor the visitors'.
	Pod, Visitor *netnstest.Namespace
	// Nginx is the app.
	Nginx *Nginx
	// V4 and V6 make connections to the app as visitors do, Admin to its
	// second port.
	V4, V6, Admin *Visitor

	nodes int
}

// URL is the address of a file of the app for a visitor.
func (v *Visitor) URL(path string) string { return "http://" + v.to.String() + "/" + path }

// Start starts a cluster whose node prefers the servers in their order. It
// ends with the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := StartServers(t)
	c.startApp(t)
	c.StartNode(t, 0)
	return c
}

// StartServers starts three servers and nothing else.
func StartServers(t testing.TB) *Cluster {
	t.Helper()
	return StartServersOf(t, Binary(t))
}

// StartServersOf is StartServers with another program.
func StartServersOf(t testing.TB, exe string) *Cluster {
	t.Helper()
	c := &Cluster{Dir: Dir(t)}
	env, err := devenv.Start(Deadline(t, startTimeout), devenv.Options{Dir: c.Dir, Servers: 3, Exe: exe})
	if err != nil {
		t.Fatal(err)
	}
	c.Dev, c.Started = env, time.Now()
	t.Cleanup(func() {
		if err := env.Close(); err != nil {
			t.Error(err)
		}
	})
	c.identities(t)
	if c.Ops, err = env.Operators(Deadline(t, startTimeout)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Ops.Close)
	return c
}

// identities adds the node's and a second client's to what the servers came
// with.
func (c *Cluster) identities(t testing.TB) {
	t.Helper()
	_, err := bundles.Init(bundles.Options{
		Dir: c.Dir, Cluster: devenv.ClusterName, Nodes: []string{NodeName}, Clients: []string{OtherClientContext}, TTL: leafTTL,
	}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c.AddContext(t, OtherClientContext, c.Bundle(bundles.ClientsDir, OtherClientContext))
}

// Bundle is the directory of an identity's certificate, by its role's folder.
func (c *Cluster) Bundle(folder, name string) string { return filepath.Join(c.Dir, folder, name) }

// AddContext adds a context for the cluster's servers with a bundle.
func (c *Cluster) AddContext(t testing.TB, name, bundle string) {
	t.Helper()
	file, err := client.LoadFile(c.Dev.ContextFile)
	if err != nil {
		t.Fatal(err)
	}
	file.Put(client.Context{Name: name, Servers: c.Dev.Addresses, Bundle: bundle, Namespace: Namespace})
	if err := file.Save(); err != nil {
		t.Fatal(err)
	}
}

// startApp makes the network and starts nginx in the pod.
func (c *Cluster) startApp(t testing.TB) {
	t.Helper()
	c.Visitor, c.Pod = netnstest.New(t), netnstest.New(t)
	_, end := netnstest.Connect(t, c.Visitor, c.Pod)
	to := func(ip netip.Addr, port uint16) *Visitor {
		return &Visitor{ns: c.Visitor, to: netip.AddrPortFrom(ip, port)}
	}
	c.V4, c.V6, c.Admin = to(end.V4, port), to(end.V6, port), to(end.V4, adminPort)
	any4, any6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	c.Nginx = StartNginx(t, c.Pod, t.TempDir(), App, netip.AddrPortFrom(any4, port), netip.AddrPortFrom(any6, port),
		netip.AddrPortFrom(any4, adminPort), netip.AddrPortFrom(any6, adminPort))
	c.save(t, "workloads.yaml", map[string]any{"workloads": []any{map[string]any{
		"namespace": Namespace, "name": Workload, "kind": "Deployment", "pods": []any{map[string]any{
			"name": Workload + "-0", "netns": c.Pod.Path, "ip": end.V4.String(), "containers": []any{map[string]any{
				"name": "nginx", "ports": []any{
					map[string]any{"name": PortName, "port": port}, map[string]any{"name": AdminPortName, "port": adminPort},
				},
			}},
		}},
	}}})
}

func (c *Cluster) save(t testing.TB, name string, v any) (path string) {
	t.Helper()
	path = filepath.Join(c.Dir, name)
	if err := config.Save(path, v, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// NodeConfig is the node's configuration as a file has it.
func (c *Cluster) NodeConfig(t testing.TB, first int) map[string]any {
	t.Helper()
	servers := append(slices.Clone(c.Dev.Addresses[first:]), c.Dev.Addresses[:first]...)
	return map[string]any{
		"name": NodeName, "servers": servers, "bundle": c.Bundle(bundles.NodesDir, NodeName),
		"stateDir": filepath.Join(c.Dir, NodeName), "workloadsFile": filepath.Join(c.Dir, "workloads.yaml"),
		"admin": "127.0.0.1:" + strconv.Itoa(FreePort(t)), "steal": steal.NameSkLookup,
	}
}

// StartNode starts the node, again if it has ended, and waits until it is
// ready. It turns to the server with that place first.
func (c *Cluster) StartNode(t testing.TB, first int) {
	t.Helper()
	conf := c.NodeConfig(t, first)
	path := c.save(t, NodeName+".yaml", conf)
	c.nodes++
	c.Node = Launch(t, Command{
		Name: fmt.Sprintf("%s-%d", NodeName, c.nodes), Path: Binary(t), Args: []string{"node", "run", "--config", path},
	})
	hc := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	Eventually(t, startTimeout, "the node is ready", func() error {
		if !c.Node.Running() {
			t.Fatalf("the node ended: %s", c.Node.ErrOut())
		}
		resp, err := hc.Get("http://" + conf["admin"].(string) + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("it says %s", resp.Status)
		}
		return nil
	})
}

// TrafficPID is the process id of the node's traffic process.
func (c *Cluster) TrafficPID(t testing.TB) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.Dir, NodeName, "traffic.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// Restart starts a server that has ended and waits until it is ready.
func (c *Cluster) Restart(t testing.TB, server int) {
	t.Helper()
	if err := c.Dev.Servers[server].Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Dev.WaitReady(Deadline(t, startTimeout), server); err != nil {
		t.Fatal(err)
	}
}
