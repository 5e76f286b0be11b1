package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"trivet/internal/rt"
	"trivet/node/heart"
	"trivet/node/internal/managertest"
	"trivet/node/link"
	"trivet/node/steal"
	"trivet/node/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plain dials test servers.
func plain(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr,
		append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())...)
}

// rig is an agent beside a pod whose app says "app" to each visitor, with a
// front in place of stealing.
type rig struct {
	t       *testing.T
	manager *managertest.Manager
	servers []*managertest.Server
	agent   *Agent
	pod     *workload.Pod
	metrics *Metrics
	// front is where visitors connect.
	front string
	pool  *link.Pool
}

type rigOptions struct {
	servers int
	tunnels TunnelsConfig
	// app is where the app is; empty for one that says "app".
	app string
	// wrap, if set, changes how the agent attaches.
	wrap func(attachFunc) attachFunc
}

type attachFunc = func(context.Context, *workload.Pod) (steal.Backend, error)

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, manager: managertest.New(t), pod: testPod()}
	var addrs []string
	for range max(o.servers, 1) {
		s := r.manager.Serve()
		r.servers = append(r.servers, s)
		addrs = append(addrs, s.Addr)
	}
	registry := prometheus.NewRegistry()
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	pool, err := link.NewPool(link.PoolConfig{
		Servers: addrs, Dial: plain, Logger: logger, Metrics: link.NewMetrics(registry),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.pool, r.metrics = pool, NewMetrics(registry)
	system := rt.NewSystem(rt.Options{Logger: logger})
	h := heart.New(logger, registry)

	ctx, cancel := context.WithCancel(context.Background())
	probes := make(chan struct{})
	go func() { defer close(probes); pool.Run(ctx) }()
	o.tunnels.Pool, o.tunnels.Metrics, o.tunnels.Logger = pool, r.metrics, logger
	tunnels, err := SpawnTunnels(system, o.tunnels)
	if err != nil {
		t.Fatal(err)
	}
	if o.app == "" {
		o.app = serve(t, "app")
	}
	attach := r.frontOf(o.app)
	if o.wrap != nil {
		attach = o.wrap(attach)
	}
	r.agent, err = Spawn(system, Config{
		Pod: r.pod, Node: "node-a", Version: "1.0.0", Pool: pool, Attach: attach,
		Heart: h, Tunnels: tunnels, Logger: logger, Metrics: r.metrics,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop, end := context.WithTimeout(context.Background(), 20*time.Second)
		defer end()
		for _, s := range r.servers {
			s.Resume()
		}
		if err := errors.Join(r.agent.Retire(stop), tunnels.Stop(stop), system.Shutdown(stop)); err != nil {
			t.Errorf("the rig does not end: %v", err)
		}
		cancel()
		<-probes
		pool.Close()
	})
	return r
}

// frontOf makes an attach function whose backend is a listener in front of the
// app at addr.
func (r *rig) frontOf(app string) attachFunc {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.front = ln.Addr().String()
	r.pod.Containers[0].Ports[0].Listen = netip.MustParseAddrPort(r.front)
	return func(context.Context, *workload.Pod) (steal.Backend, error) {
		p, err := steal.NewProxy(steal.ProxyConfig{
			StaleAfter: time.Hour,
			Routes: []steal.Route{{
				Listener: ln.(*net.TCPListener), Original: netip.AddrPortFrom(r.pod.IP, 8080),
				App: netip.MustParseAddrPort(app),
			}},
		})
		if err != nil {
			return nil, err
		}
		return p, p.Beat()
	}
}

// serve starts a server that greets each visitor, echoes until the visitor's
// end and then ends too. It returns its address.
func serve(t *testing.T, greeting string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	conns := make(chan struct{}, 4096)
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			conns <- struct{}{}
			go func() {
				defer func() { <-conns }()
				defer c.Close()
				fmt.Fprintln(c, greeting)
				_, _ = io.Copy(c, c) // it ends as the visitor does
			}()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-done })
	return ln.Addr().String()
}

// visit connects to the front.
func (r *rig) visit() net.Conn {
	r.t.Helper()
	c, err := net.DialTimeout("tcp", r.front, 5*time.Second)
	if err != nil {
		r.t.Fatalf("visit: %v", err)
	}
	r.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// greeted reads the greeting of whoever answers.
func greeted(t *testing.T, c net.Conn, want string) {
	t.Helper()
	buf := make([]byte, len(want)+1)
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != want+"\n" {
		t.Fatalf("visitor was greeted with %q, %v; want %q", buf, err, want)
	}
}

// echoes sends text through the connection, ends its side and expects the text
// back.
func echoes(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || string(got) != text {
		t.Fatalf("echo is %d bytes, %v; want %d", len(got), err, len(text))
	}
}

// awaitCount waits until the connections that ended that way are as many.
func (r *rig) awaitCount(out outcome, why reason, want float64) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%v connections counted as %s, %s", want, out, why), func() bool {
		return value(r.t, r.metrics.connections.WithLabelValues(string(out), string(why))) == want
	})
}

// value returns what a counter or gauge shows.
func value(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

// eventually polls what gives no event.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	limit := time.Now().Add(20 * time.Second)
	for !f() {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
