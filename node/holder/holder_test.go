package holder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"trivet/node/handoff"
	"trivet/node/holder"
	"trivet/node/steal"
	"trivet/node/workload"
)

// The test binary is also the traffic process: with roleArg and what it does.
const roleArg = "traffic-role"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == roleArg {
		if err := play(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// play is a traffic process that does as its role says.
func play(role string) error {
	if role == "crash" {
		return errors.New("as told")
	}
	client, welcome, beatFile, err := handoff.Connect(os.NewFile(3, "socket"), func(w io.Writer) error {
		_, err := io.WriteString(w, "metric 1\n")
		return err
	})
	if err != nil {
		return err
	}
	go func() { _ = client.Run() }()
	beat := client.Beat
	if beatFile != nil {
		shared, err := steal.AdoptBeat(beatFile)
		if err != nil {
			return err
		}
		beat = shared.Write
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if role == "deaf" {
		signal.Ignore(syscall.SIGTERM)
	}
	if addr, ok := strings.CutPrefix(role, "front="); ok {
		a, files, err := client.Attach(context.Background(), handoff.Request{UID: "u", Fronts: []string{addr}})
		if err != nil || a.Backend != steal.NameProxy || len(files) != 1 {
			return fmt.Errorf("attach: %v, %d files, %w", a, len(files), err)
		}
	}
	if err := client.Status(handoff.Status{Connected: true, Agents: len(welcome.Held)}); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	for n := 0; ; n++ {
		if role != "silent" {
			if err := beat(); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-term:
			return nil
		case <-client.Done():
			return nil
		}
	}
}

// rig is a running holder.
type rig struct {
	t        *testing.T
	holder   *holder.Holder
	registry *prometheus.Registry
	pidFile  string
	stop     func() error
}

// start runs a holder whose traffic processes play the roles, one after the
// other; the last one again and again.
func start(t *testing.T, change func(*holder.Config), roles ...string) *rig {
	t.Helper()
	r := &rig{t: t, registry: prometheus.NewRegistry(), pidFile: filepath.Join(t.TempDir(), "traffic.pid")}
	next := 0
	cfg := holder.Config{
		Command: func() *exec.Cmd {
			role := roles[min(next, len(roles)-1)]
			next++
			cmd := exec.Command(os.Args[0], roleArg, role)
			cmd.Stderr = os.Stderr
			return cmd
		},
		BootID: "boot", Reason: "a test", Settings: json.RawMessage("{}"), PIDFile: r.pidFile,
		RestartMin: 10 * time.Millisecond, RestartMax: 100 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Registry: r.registry,
	}
	if change != nil {
		change(&cfg)
	}
	h, err := holder.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.holder = h
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	stopped := false
	r.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(60 * time.Second):
			return errors.New("the holder does not end")
		}
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return r
}

func (r *rig) eventually(what string, f func() bool) {
	r.t.Helper()
	limit := time.Now().Add(30 * time.Second)
	for !f() {
		if time.Now().After(limit) {
			r.t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (r *rig) awaitReady() {
	r.t.Helper()
	r.eventually("readiness", func() bool { return r.holder.Ready() == nil })
}

func (r *rig) pid() string {
	raw, err := os.ReadFile(r.pidFile)
	if err != nil {
		return ""
	}
	return string(raw)
}

// restarts returns how many processes were replaced for the reason.
func (r *rig) restarts(reason string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "trivet_node_traffic_restarts_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if label(m) == reason {
				return m.GetCounter().GetValue()
			}
		}
	}
	r.t.Fatalf("no metric for %s", reason)
	return 0
}

func label(m *dto.Metric) string { return m.GetLabel()[0].GetValue() }

func TestCrashedProcessIsReplaced(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "crash", "crash", "beat")
	r.awaitReady()
	if got := r.restarts("exit"); got != 2 {
		t.Errorf("%v restarts are counted", got)
	}
	if data, err := r.holder.Metrics(t.Context()); err != nil || string(data) != "metric 1\n" {
		t.Errorf("metrics are %q, %v", data, err)
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if r.pid() != "" {
		t.Error("the process id is still kept")
	}
}

func TestProcessThatNeverBeatsIsReplaced(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *holder.Config) { c.StartWithin = 300 * time.Millisecond }, "silent", "beat")
	r.awaitReady()
	if got := r.restarts("hang"); got != 1 {
		t.Errorf("%v restarts are counted", got)
	}
}

func TestProcessThatDoesNotEndIsKilled(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *holder.Config) { c.Drain = 200 * time.Millisecond }, "deaf")
	r.awaitReady()
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := r.holder.Ready(); err == nil {
		t.Error("the holder is ready after its end")
	}
}

func TestListenerInFrontOutlivesTheProcess(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	r := start(t, nil, "front="+addr, "beat")
	r.awaitReady()
	first := r.pid()
	r.holder.Signal(syscall.SIGKILL)
	r.eventually("the next process", func() bool { p := r.pid(); return p != "" && p != first })
	r.awaitReady()
	// Nobody accepts, and still nobody is refused.
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("the listener is gone: %v", err)
	}
	c.Close()
	if err := r.holder.Detach("u"); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", addr); err == nil {
		t.Error("something still listens in front of a pod that was given back")
	}
}

func TestNamespaceThatIsNoneIsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, nil, "beat")
	for _, req := range []handoff.Request{
		{},
		{UID: "u"},
		{UID: "u", Net: workload.Net{Path: "/dev/null"}},
		{UID: "u", Fronts: []string{"256.0.0.1:1"}},
	} {
		if _, files, err := r.holder.Attach(t.Context(), req); err == nil || len(files) > 0 {
			t.Errorf("%+v: %d descriptors, %v", req, len(files), err)
		}
	}
}

func TestFrozenProcessIsKilledByItsSharedBeat(t *testing.T) {
	t.Parallel()
	err := steal.Probe()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := start(t, func(c *holder.Config) { c.Steal, c.Reason = true, "" }, "beat")
	r.awaitReady()
	first := r.pid()
	r.holder.Signal(syscall.SIGSTOP)
	r.eventually("the next process", func() bool { p := r.pid(); return p != "" && p != first })
	r.awaitReady()
	if got := r.restarts("hang"); got != 1 {
		t.Errorf("%v restarts are counted", got)
	}
}
