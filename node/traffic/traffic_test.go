package traffic_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trivet/node/handoff"
	"trivet/node/internal/managertest"
	"trivet/node/link"
	"trivet/node/steal"
	"trivet/node/traffic"
	"trivet/node/workload"
	nodev1 "trivet/proto/trivet/node/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit bounds every wait of a test.
const limit = 20 * time.Second

func plain(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())...)
}

// rig is a traffic process inside the test, with two pods that have a listener
// in front of them; the test is its holder.
type rig struct {
	t       *testing.T
	manager *managertest.Manager
	dir     string
	fronts  map[string]*net.TCPListener // by uid
	app     string
	stop    func() error

	mu       sync.Mutex
	changed  chan struct{} // closed at any change
	proxies  map[string]*steal.Proxy
	detached []string
	status   handoff.Status
	beats    int
}

const pods = `
workloads:
- {namespace: default, name: echo, pods: [
    {name: echo-0, uid: u0, ip: 10.0.0.1, hostNetwork: true, containers: [{name: app, ports: [{port: 8080, listen: "127.0.0.1:1", app: "127.0.0.1:2"}]}]},
    {name: echo-1, uid: u1, ip: 10.0.0.2, hostNetwork: true, containers: [{name: app, ports: [{port: 8080, listen: "127.0.0.1:1", app: "127.0.0.1:2"}]}]}]}
`

func start(t *testing.T, drain time.Duration, held ...string) *rig {
	t.Helper()
	r := &rig{
		t: t, manager: managertest.New(t), dir: t.TempDir(), fronts: map[string]*net.TCPListener{},
		changed: make(chan struct{}), proxies: map[string]*steal.Proxy{},
	}
	r.app = greet(t, "app")
	for _, uid := range []string{"u0", "u1"} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.fronts[uid] = ln.(*net.TCPListener)
		t.Cleanup(func() { ln.Close() })
	}
	r.write(pods)
	server := r.manager.Serve()
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	registry := prometheus.NewRegistry()
	source, err := workload.Open(r.file(), "node-a", logger)
	if err != nil {
		t.Fatal(err)
	}
	metrics := link.NewMetrics(registry)
	ledger, err := link.OpenLedger(r.dir, metrics)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := link.NewPool(link.PoolConfig{Servers: []string{server.Addr}, Dial: plain, Logger: logger, Metrics: metrics})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- traffic.Run(ctx, traffic.Config{
			Hello:  &nodev1.NodeHello{Name: "node-a", Version: "1.0.0"},
			Source: source, Pool: pool, Ledger: ledger, LinkMetrics: metrics,
			Attach: r.attach, Detach: r.detach, Held: held, Beat: r.beat,
			Status: func(s handoff.Status) error { r.update(func() { r.status = s }); return nil },
			Drain:  drain, Logger: logger, Registry: registry,
		})
	}()
	var once sync.Once
	var result error
	r.stop = func() error {
		once.Do(func() {
			cancel()
			result = <-ended
		})
		return result
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *rig) file() string { return filepath.Join(r.dir, "workloads.yaml") }

func (r *rig) write(doc string) {
	r.t.Helper()
	if err := os.WriteFile(r.file()+".new", []byte(doc), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.file()+".new", r.file()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) update(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until the holder's side is as wanted.
func (r *rig) await(what string, wanted func() bool) {
	r.t.Helper()
	end := time.After(limit)
	for {
		r.mu.Lock()
		ok, changed := wanted(), r.changed
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-end:
			r.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (r *rig) attach(_ context.Context, pod *workload.Pod) (steal.Backend, error) {
	// The proxy owns its listener; the holder keeps the first one.
	f, err := r.fronts[pod.UID].File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	p, err := steal.NewProxy(steal.ProxyConfig{Routes: []steal.Route{{
		Listener: ln.(*net.TCPListener), Original: netip.AddrPortFrom(pod.IP, 8080), App: netip.MustParseAddrPort(r.app),
	}}})
	if err != nil {
		return nil, err
	}
	r.update(func() { r.proxies[pod.UID] = p })
	return p, p.Beat()
}

func (r *rig) detach(_ context.Context, uid string) error {
	r.update(func() { r.detached = append(r.detached, uid) })
	return nil
}

func (r *rig) beat() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beats++
	for _, p := range r.proxies {
		if err := p.Beat(); err != nil {
			return err
		}
	}
	return nil
}

func greet(t *testing.T, line string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintln(c, line)
				_, _ = io.Copy(c, c) // it ends as the visitor does
			}()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// visit connects to a pod and returns the greeting with the open connection.
func (r *rig) visit(uid string) (net.Conn, string) {
	r.t.Helper()
	c, err := net.Dial("tcp", r.fronts[uid].Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		r.t.Fatal(err)
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return c, err.Error()
	}
	return c, strings.TrimSpace(string(buf[:n]))
}

func wanted(uids ...string) []*nodev1.WantedAgent {
	var out []*nodev1.WantedAgent
	for _, uid := range uids {
		out = append(out, &nodev1.WantedAgent{Namespace: "default", Workload: "echo", PodUid: uid})
	}
	return out
}

func (r *rig) awaitAgents(uids ...string) {
	r.t.Helper()
	r.manager.Await(fmt.Sprintf("agents %v", uids), func(s managertest.State) bool {
		var have []string
		for id := range s.Agents {
			have = append(have, strings.TrimPrefix(id, "agent:"))
		}
		slices.Sort(have)
		return slices.Equal(have, uids)
	})
}

func TestAgentsComeAndGoAsOrdered(t *testing.T) {
	t.Parallel()
	// u1 and one that no longer exists are held for a process before this one.
	r := start(t, 0, "u1", "old")
	r.await("the end of what nobody wants", func() bool {
		return slices.Contains(r.detached, "old") && slices.Contains(r.detached, "u1")
	})
	r.manager.Order(wanted("u0", "u1", "elsewhere")...)
	r.awaitAgents("u0", "u1")
	r.await("the status", func() bool { return r.status == handoff.Status{Connected: true, Agents: 2} })
	r.manager.Order(wanted("u1")...)
	r.awaitAgents("u1")
	r.await("the pod to be given back", func() bool { return slices.Contains(r.detached, "u0") })
	r.manager.Order(wanted("u0", "u1")...)
	r.awaitAgents("u0", "u1")
	// A pod that changes gets a new agent.
	r.write(strings.Replace(pods, "10.0.0.1", "10.0.0.9", 1))
	r.manager.Await("the new address", func(s managertest.State) bool { return s.Agents["agent:u0"].GetPodIp() == "10.0.0.9" })
	r.write("workloads: []")
	r.awaitAgents()
}

func TestOrdersOutliveTheProcess(t *testing.T) {
	t.Parallel()
	r := start(t, 0)
	r.manager.Order(wanted("u0")...)
	r.awaitAgents("u0")
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.awaitAgents() // it departed
	ledger, err := link.OpenLedger(r.dir, link.NewMetrics(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	if got := ledger.Last().GetAgents(); len(got) != 1 || got[0].GetPodUid() != "u0" {
		t.Errorf("kept orders are %v", got)
	}
	if slices.Contains(r.detached, "u0") {
		t.Error("the pod was given back, though the next process will want it")
	}
}

func TestEveryPodOfTheWorkloadIsIntercepted(t *testing.T) {
	t.Parallel()
	r := start(t, 0)
	r.manager.OnTunnel(managertest.Owner(greet(t, "laptop")))
	r.manager.Order(wanted("u0", "u1")...)
	r.awaitAgents("u0", "u1")
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo"))
	for _, uid := range []string{"u0", "u1"} {
		for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
			c, got := r.visit(uid)
			c.Close()
			if got == "laptop" {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("pod %s answers %q", uid, got)
			}
		}
	}
}

func TestOpenConnectionsMayEndInPeace(t *testing.T) {
	t.Parallel()
	for name, peace := range map[string]bool{"in time": true, "not in time": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drain := limit
			if !peace {
				drain = 200 * time.Millisecond
			}
			r := start(t, drain)
			r.manager.OnTunnel(managertest.Owner(greet(t, "laptop")))
			r.manager.Order(wanted("u0")...)
			r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo"))
			var c net.Conn
			for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
				got := ""
				if r.isAttached("u0") {
					if c, got = r.visit("u0"); got == "laptop" {
						break
					}
					c.Close()
				}
				if time.Now().After(end) {
					t.Fatalf("pod answers %q", got)
				}
			}
			ended := make(chan error, 1)
			go func() { ended <- r.stop() }()
			r.manager.Await("the departure", func(s managertest.State) bool { return slices.Contains(s.Log, "depart agent:u0") })
			if !peace {
				if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
					t.Errorf("the open connection ended with %v, want a reset", err)
				}
			} else {
				fmt.Fprint(c, "bye")
				if err := c.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(c); err != nil || string(got) != "bye" {
					t.Errorf("the open connection says %q, %v", got, err)
				}
			}
			if err := <-ended; err != nil {
				t.Errorf("stop: %v", err)
			}
		})
	}
}

func (r *rig) isAttached(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.proxies[uid] != nil
}
