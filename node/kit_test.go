package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"trivet/internal/config"
	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
	"trivet/internal/pki"
	"trivet/node"
	"trivet/node/internal/managertest"
	"trivet/node/steal"
	"trivet/proto/telepresence/manager"
	nodev1 "trivet/proto/trivet/node/v1"
)

// The test binary is also the processes of a node: with trafficArg the traffic
// process, with nodeArg and a file a whole node.
const (
	trafficArg = "traffic-process"
	nodeArg    = "node-process"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case trafficArg:
			os.Exit(asProcess(trafficProcess))
		case nodeArg:
			os.Exit(asProcess(nodeProcess))
		}
	}
	goleak.VerifyTestMain(m)
}

func asProcess(run func(context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func trafficProcess(ctx context.Context) error {
	socket, err := node.InheritedSocket()
	if err != nil {
		return err
	}
	return node.RunTraffic(ctx, socket)
}

func nodeProcess(ctx context.Context) error {
	cfg, err := node.LoadConfig(os.Args[2])
	if err != nil {
		return err
	}
	cfg.Command = []string{os.Args[0], trafficArg}
	return node.Run(ctx, cfg)
}

const (
	workloadName = "echo"
	podUID       = "uid-0"
	session      = "agent:" + podUID
	appPort      = 8080
	// soon is what a visitor may have to wait; tests run on busy machines.
	soon = 20 * time.Second
)

// rig is a manager with one server, a node's files, and a pod.
type rig struct {
	t       *testing.T
	manager *managertest.Manager
	server  *managertest.Server
	dir     string
	config  string
	// dial visits the pod over the family that it is asked for, 4 or 6.
	dial func(family int) (net.Conn, error)
}

// newRig makes certificates, manager and configuration. pod describes the pod
// in the workload file: its place, address and port.
func newRig(t *testing.T, backend, pod, port string) *rig {
	t.Helper()
	r := &rig{t: t, manager: managertest.New(t), dir: t.TempDir()}
	now := time.Now()
	ca, err := pki.InitCA(filepath.Join(r.dir, "ca"), "test", now)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role pki.Role, name string) *pki.Bundle {
		b, err := ca.Issue(pki.Template{ID: pki.ID{Cluster: "test", Role: role, Name: name}}, now)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if err := issue(pki.RoleNode, "node-a").Write(filepath.Join(r.dir, "bundle")); err != nil {
		t.Fatal(err)
	}
	conf := pki.ServerConfig(pki.NewSource(issue(pki.RoleServer, "server-1")),
		pki.Policy{ALPN: []string{"h2"}, Roles: []pki.Role{pki.RoleNode}})
	r.server = r.manager.Serve(grpc.Creds(credentials.NewTLS(conf)))
	r.manager.Order(&nodev1.WantedAgent{Namespace: "default", Workload: workloadName, PodUid: podUID})

	workloads := fmt.Sprintf("workloads: [{namespace: default, name: %s, pods: [{name: echo-0, uid: %s, %s, "+
		"containers: [{name: app, env: {COLOUR: blue}, ports: [{name: http, port: %d%s}]}]}]}]\n",
		workloadName, podUID, pod, appPort, port)
	if err := os.WriteFile(filepath.Join(r.dir, "workloads.yaml"), []byte(workloads), 0o600); err != nil {
		t.Fatal(err)
	}
	r.config = filepath.Join(r.dir, "node.yaml")
	if err := config.Save(r.config, map[string]any{
		"name": "node-a", "servers": []string{r.server.Addr}, "bundle": "bundle", "stateDir": "state",
		"workloadsFile": "workloads.yaml", "admin": "127.0.0.1:0", "steal": backend, "log": map[string]any{"level": "debug"},
	}, 0o600); err != nil {
		t.Fatal(err)
	}
	return r
}

// newPod makes a rig with a pod in a network namespace of its own.
func newPod(t *testing.T) *rig {
	t.Helper()
	err := steal.Probe()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	visitor, pod := netnstest.New(t), netnstest.New(t)
	_, end := netnstest.Connect(t, visitor, pod)
	ln, err := netns.Listen(t.Context(), pod.NS, "tcp", ":"+strconv.Itoa(appPort))
	if err != nil {
		t.Fatal(err)
	}
	greet(t, ln, "app")
	r := newRig(t, steal.NameSkLookup, fmt.Sprintf("ip: %s, netns: %s", end.V4, pod.Path), "")
	r.dial = func(family int) (net.Conn, error) {
		ip := end.V4
		if family == 6 {
			ip = end.V6
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return netns.Dial(ctx, visitor.NS, "tcp", netip.AddrPortFrom(ip, appPort).String(), nil)
	}
	return r
}

// newFront makes a rig with a pod that has a listener in front of it.
func newFront(t *testing.T) *rig {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	app := greet(t, ln, "app")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := free.Addr().String()
	free.Close()
	r := newRig(t, steal.NameProxy, "ip: 10.1.2.3", fmt.Sprintf(", listen: %q, app: %q", front, app))
	r.dial = func(int) (net.Conn, error) { return net.DialTimeout("tcp", front, 5*time.Second) }
	return r
}

// greet answers each visitor of ln with a line and then with what the visitor
// says, until the test ends. It returns the address.
func greet(t *testing.T, ln net.Listener, line string) string {
	t.Helper()
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

// laptop has tunnels end at a server that greets with that name.
func (r *rig) laptop() {
	r.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.manager.OnTunnel(managertest.Owner(greet(r.t, ln, "laptop")))
}

// start runs the node in this process, with a traffic process of its own. It
// returns how to stop it, which the end of the test does too.
func (r *rig) start() (stop func() error) {
	r.t.Helper()
	cfg, err := node.LoadConfig(r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	cfg.Version = "1.2.3"
	cfg.Command = []string{os.Args[0], trafficArg}
	cfg.Logger = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx, cfg) }()
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(60 * time.Second):
			return errors.New("the node does not end")
		}
	}
	r.t.Cleanup(func() {
		if err := stop(); err != nil {
			r.t.Errorf("stop node: %v", err)
		}
	})
	return stop
}

// intercept makes an intercept and waits until it is active.
func (r *rig) intercept() {
	r.t.Helper()
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", workloadName))
	r.manager.Await("an active intercept", func(s managertest.State) bool {
		return s.Intercepts["client-1:one"].GetDisposition() == manager.InterceptDispositionType_ACTIVE
	})
}

// answer visits the pod and returns who greets.
func (r *rig) answer(family int) string {
	c, err := r.dial(family)
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	return read(c)
}

// read returns the greeting on c.
func read(c net.Conn) string {
	if err := c.SetDeadline(time.Now().Add(soon)); err != nil {
		return err.Error()
	}
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(buf[:n]))
}

// expect visits the pod and fails unless it is greeted so.
func (r *rig) expect(family int, want string) {
	r.t.Helper()
	if got := r.answer(family); got != want {
		r.t.Fatalf("visitor over IPv%d was answered %q, want %q", family, got, want)
	}
}

// awaitAnswer visits until somebody greets so.
func (r *rig) awaitAnswer(want string) {
	r.t.Helper()
	r.eventually("the answer "+want, func() bool { return r.answer(4) == want })
}

func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	limit := time.Now().Add(2 * soon)
	for !f() {
		if time.Now().After(limit) {
			r.t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// trafficPID returns the process id of the traffic process, 0 for none.
func (r *rig) trafficPID() int {
	raw, err := os.ReadFile(filepath.Join(r.dir, "state", "traffic.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// awaitTraffic waits for a traffic process that is not the one given.
func (r *rig) awaitTraffic(not int) int {
	r.t.Helper()
	pid := 0
	r.eventually("a traffic process", func() bool {
		pid = r.trafficPID()
		return pid != 0 && pid != not
	})
	return pid
}

// admin asks the admin listener and returns status and body.
func (r *rig) admin(path string) (int, string) {
	r.t.Helper()
	addr, err := os.ReadFile(filepath.Join(r.dir, "state", "admin.addr"))
	if err != nil {
		return 0, err.Error()
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + strings.TrimSpace(string(addr)) + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// freeze stops a process and waits until none of its threads runs.
func freeze(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	limit := time.Now().Add(soon)
	for !isFrozen(pid) {
		if time.Now().After(limit) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

func isFrozen(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		// PID (COMMAND) STATE ...
		raw, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " T") {
			return false
		}
	}
	return true
}

// kill ends a process at once.
func kill(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// isGone tells whether a process has ended.
func isGone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
