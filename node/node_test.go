package node_test

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"trivet/internal/errs"
	"trivet/node"
	"trivet/node/internal/managertest"
	"trivet/node/steal"
)

func TestInterceptThroughAFront(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	r.laptop()
	stop := r.start()
	r.awaitAnswer("app")
	r.intercept()
	r.expect(4, "laptop")
	if env := r.manager.State().Intercepts["client-1:one"].GetEnvironment(); env["COLOUR"] != "blue" {
		t.Errorf("the owner got the environment %v", env)
	}
	hello := r.manager.State().Hellos[0]
	if hello.GetStealBackend() != steal.NameProxy || hello.GetStealReason() == "" || hello.GetVersion() != "1.2.3" || hello.GetBootId() == "" {
		t.Errorf("hello is %v", hello)
	}
	r.manager.SetIntercepts()
	r.awaitAnswer("app")
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if _, err := r.dial(4); err == nil {
		t.Error("something still listens in front of the app")
	}
}

func TestFrontAnswersAfterTheTrafficProcessHung(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	r.laptop()
	r.start()
	r.awaitAnswer("app")
	r.intercept()
	pid := r.trafficPID()
	freeze(t, pid)
	// This one waits in the listener's queue for the next process.
	c, err := r.dial(4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := read(c); got != "app" && got != "laptop" {
		t.Errorf("visitor was answered %q", got)
	}
	r.awaitTraffic(pid)
	r.awaitAnswer("laptop")
}

func TestAdminShowsHealthAndMetricsOfBothProcesses(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	r.start()
	r.eventually("readiness", func() bool { code, _ := r.admin("/readyz"); return code == http.StatusOK })
	if code, body := r.admin("/livez"); code != http.StatusOK {
		t.Errorf("livez: %d %s", code, body)
	}
	_, metrics := r.admin("/metrics")
	for _, want := range []string{
		"trivet_node_traffic_up 1", "trivet_node_manager_connected 1",
		`trivet_node_connections_total{outcome="reset",reason="dial_rejected"} 0`,
		`trivet_node_traffic_restarts_total{reason="hang"} 0`, "trivet_node_beats_total",
		`trivet_node_actor_live{kind="agent"} 1`, "trivet_node_traffic_go_goroutines",
	} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %q", want)
		}
	}
	r.server.Kill()
	r.eventually("unreadiness", func() bool {
		code, body := r.admin("/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "no server of the manager gives orders")
	})
	if code, _ := r.admin("/else"); code != http.StatusNotFound {
		t.Errorf("the admin listener serves something else: %d", code)
	}
}

func TestInterceptStealsOverBothFamilies(t *testing.T) {
	t.Parallel()
	r := newPod(t)
	r.laptop()
	stop := r.start()
	r.expect(4, "app")
	r.intercept()
	r.expect(4, "laptop")
	r.expect(6, "laptop")
	c, err := r.dial(4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := read(c); got != "laptop" {
		t.Fatalf("visitor was answered %q", got)
	}
	r.manager.SetIntercepts()
	r.awaitAnswer("app")
	r.expect(6, "app")
	// The open connection goes on.
	if _, err := c.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if got := read(c); got != "hello" {
		t.Errorf("open connection says %q", got)
	}
	c.Close()
	pid := r.trafficPID()
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	r.expect(4, "app")
	if !isGone(pid) {
		t.Error("the traffic process is still there")
	}
	if log := r.manager.State().Log; !slices.Contains(log, "depart "+session) {
		t.Errorf("the agent did not depart: %v", log)
	}
}

// answersSoon visits the pod every few milliseconds from a second after `from`
// on, as P4 promises, and fails at the first visitor who is not answered.
func answersSoon(r *rig, from time.Time) {
	r.t.Helper()
	time.Sleep(time.Until(from.Add(time.Second))) // the promise is about time
	for range 20 {
		began := time.Now()
		got := r.answer(4)
		if got != "app" && got != "laptop" {
			r.t.Fatalf("visitor was answered %q", got)
		}
		if took := time.Since(began); took > 2*time.Second {
			r.t.Errorf("visitor waited %v", took)
		}
	}
}

func TestAppAnswersWhenTheTrafficProcessDies(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, int){"hangs": freeze, "is killed": kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newPod(t)
			r.laptop()
			r.start()
			r.intercept()
			r.expect(4, "laptop")
			pid := r.trafficPID()
			from := time.Now()
			end(t, pid)
			answersSoon(r, from)
			r.awaitTraffic(pid)
			r.awaitAnswer("laptop")
			if log := r.manager.State().Log; slices.Contains(log, "depart "+session) {
				t.Errorf("the session was given up: %v", log)
			}
		})
	}
}

func TestConnectionInTheAcceptQueueSurvives(t *testing.T) {
	t.Parallel()
	r := newPod(t)
	r.laptop()
	r.start()
	r.intercept()
	pid := r.trafficPID()
	freeze(t, pid)
	// The last beat is fresh: this one is stolen, and nobody accepts it.
	c, err := r.dial(4)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := read(c); got != "laptop" {
		t.Errorf("visitor was answered %q by the next traffic process", got)
	}
	if next := r.trafficPID(); next == pid {
		t.Error("the traffic process was not replaced")
	}
}

func TestRestartWithoutAManagerLeavesTraffic(t *testing.T) {
	t.Parallel()
	r := newPod(t)
	r.laptop()
	r.start()
	r.intercept()
	r.expect(4, "laptop")
	r.server.Kill()
	pid := r.trafficPID()
	kill(t, pid)
	r.awaitTraffic(pid)
	// The new process does not know what the manager wants.
	answersSoon(r, time.Now())
	// It knows which agents it has to have, and has them at once.
	r.server.Restart()
	r.awaitAnswer("laptop")
	if n := len(r.manager.State().Hellos); n < 1 {
		t.Errorf("the node said hello %d times", n)
	}
}

func TestDeathOfTheHolderGivesThePodBack(t *testing.T) {
	t.Parallel()
	r := newPod(t)
	r.laptop()
	holder := exec.Command(os.Args[0], nodeArg, r.config)
	log, err := os.Create(filepath.Join(r.dir, "node.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	holder.Stdout, holder.Stderr = log, log
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = holder.Process.Kill()
			_ = holder.Wait()
		}
	})
	r.intercept()
	r.expect(4, "laptop")
	pid := r.trafficPID()
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	ended = true
	if err := holder.Wait(); err == nil {
		t.Error("the holder was killed and says nothing of it")
	}
	r.expect(4, "app")
	r.eventually("the end of the traffic process", func() bool { return isGone(pid) })
	// Nothing is in the way of the next one.
	r.start()
	r.awaitAnswer("laptop")
}

func TestWorkloadsAreFollowed(t *testing.T) {
	t.Parallel()
	r := newPod(t)
	r.laptop()
	r.start()
	r.intercept()
	r.expect(4, "laptop")
	path := filepath.Join(r.dir, "workloads.yaml")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("workloads: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.manager.Await("the end of the agent", func(s managertest.State) bool {
		return slices.Contains(s.Log, "depart "+session) && len(s.Workloads.GetWorkloads()) == 0
	})
	r.awaitAnswer("app")
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	r.awaitAnswer("laptop")
}

func TestBadSetupIsRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	tests := map[string]struct {
		change func(*node.Config)
		reason string
	}{
		"another node's certificate": {func(c *node.Config) { c.Name = "node-b" }, "WRONG_CERTIFICATE"},
		"no certificate":             {func(c *node.Config) { c.Bundle = t.TempDir() }, "BUNDLE_MISSING"},
		"no workloads":               {func(c *node.Config) { c.WorkloadsFile += "x" }, "CONFIG_MISSING"},
		"no servers":                 {func(c *node.Config) { c.Servers = nil }, "CONFIG_INVALID"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg, err := node.LoadConfig(r.config)
			if err != nil {
				t.Fatal(err)
			}
			cfg.StateDir = filepath.Join(t.TempDir(), "state")
			tt.change(cfg)
			err = node.Run(t.Context(), cfg)
			e := errs.From(err)
			if e == nil || (e.Reason != tt.reason && tt.reason != "BUNDLE_MISSING") || e.Hint == "" {
				t.Errorf("error is %v (%+v), want %s with a hint", err, e, tt.reason)
			}
			if _, err := os.Stat(cfg.StateDir); err == nil {
				t.Error("it left something behind")
			}
		})
	}
}

func TestStateBelongsToOneNode(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	r.start()
	r.awaitAnswer("app")
	cfg, err := node.LoadConfig(r.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Run(t.Context(), cfg); errs.Reason(err) != "STATE_IN_USE" {
		t.Errorf("a second node with the same state: %v", err)
	}
}

func TestAdminPortInUseIsAnError(t *testing.T) {
	t.Parallel()
	r := newFront(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cfg, err := node.LoadConfig(r.config)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin = ln.Addr().String()
	if err := node.Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "open admin listener") {
		t.Errorf("error is %v", err)
	}
}
