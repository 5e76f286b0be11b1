package system

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"trivet/cluster/engine"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/metricdoc"
	"trivet/test/systest"
)

// The canaries: secrets of the workload, one in its process's environment and
// one that the workloads file states.
const (
	processCanary = "canary-process-6f20d1"
	statedCanary  = "canary-stated-b71e58"
)

var canaries = []string{processCanary, statedCanary}

// maxAttempts is how often one write may have to be tried while servers are
// restarted one after the other. Each attempt goes to another server, and a
// server that has no leader holds a write for a while before it gives up.
const maxAttempts = 4

// TestOperations is a day of an operator: every server is restarted in turn and
// two are killed, while clients write and an intercept is up; then everything is
// collected that one would send to somebody else, and no secret is in it.
func TestOperations(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	plantSecrets(t, c)
	local := systest.StartLocal(t)
	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port})
	ownerHasThem(t, c, local)
	wantHealthy(t, c)
	snapshotOften(t, c)

	w := startWriters(c)
	for server := range c.Dev.Servers {
		restart(t, c, w, server)
	}
	for _, server := range []int{c.Leader(t), (c.Leader(t) + 1) % 3} {
		killAndStart(t, c, w, server)
	}
	w.stop()
	w.wantAll(t, c)
	wantIntercept(t, c, i)
	answeredBy(t, c, systest.Local)
	wantHealthy(t, c)
	wantDocumentedMetrics(t, c)
	wantNoSecrets(t, c)

	// What is written at the end is looked at, too.
	if err := i.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Wait(systest.Deadline(t, settle)); err != nil {
		t.Fatal(err)
	}
	c.WantSameState(t)
	if err := c.Node.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, p := range c.Dev.Servers {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	wantNothingOnDisk(t, c)
}

// plantSecrets gives the workload an environment and starts its node again, so
// that its agent arrives with it.
func plantSecrets(t *testing.T, c *systest.Cluster) {
	t.Helper()
	// nginx overwrites its own environment with its title.
	holder := systest.Launch(t, systest.Command{
		Name: "environment", Path: "/bin/sleep", Args: []string{"3600"}, Env: []string{"PROCESS_PASSWORD=" + processCanary},
	})
	path := filepath.Join(c.Dir, "workloads.yaml")
	f := load(t, path)
	container := f["workloads"].([]any)[0].(map[string]any)["pods"].([]any)[0].(map[string]any)["containers"].([]any)[0].(map[string]any)
	container["pid"] = holder.PID()
	container["env"] = map[string]any{"STATED_PASSWORD": statedCanary}
	save(t, path, f)
	if err := c.Node.Stop(); err != nil {
		t.Fatal(err)
	}
	c.StartNode(t, 0)
}

// ownerHasThem wants the environment where it belongs: with the command of who
// intercepts the workload.
func ownerHasThem(t *testing.T, c *systest.Cluster, local *systest.Nginx) {
	t.Helper()
	r := c.Trivet(t, systest.ClientContext, "intercept", "create", "second", "--workload", systest.Workload,
		"--port", fmt.Sprintf("%d:%s", local.Port, systest.AdminPortName), "--", "env")
	for _, canary := range canaries {
		if r.Code != 0 || !strings.Contains(r.Out, canary) {
			t.Fatalf("%s is not in the environment of the owner's command: exit %d, %s%s", canary, r.Code, r.Out, r.Err)
		}
	}
}

// snapshotOften changes the servers' configuration so that they take snapshots
// of their logs under the little that a test writes. It holds from their next
// start on.
func snapshotOften(t *testing.T, c *systest.Cluster) {
	t.Helper()
	for _, p := range c.Dev.Servers {
		path := filepath.Join(c.Dir, p.Name+".yaml")
		f := load(t, path)
		f["snapshot"] = map[string]any{"threshold": 200, "interval": "1s", "trailingLogs": 50}
		save(t, path, f)
		if r := c.Trivet(t, "", "config", "validate", "--config", path); r.Code != 0 {
			t.Fatalf("the changed configuration of %s: %s", p.Name, r.Err)
		}
	}
}

// wantHealthy wants doctor to find nothing, within the time that servers need to
// measure and compare each other anew.
func wantHealthy(t *testing.T, c *systest.Cluster) {
	t.Helper()
	systest.Eventually(t, settle, "doctor finds nothing", func() error {
		r := c.Trivet(t, systest.OperatorContext, "doctor", "-o", "jsonl")
		seen := map[string]int{}
		for line := range strings.Lines(r.Out) {
			var f struct{ Where, Check, Level, Message string }
			if err := json.Unmarshal([]byte(line), &f); err != nil {
				t.Fatalf("doctor printed %q: %v", line, err)
			}
			seen[f.Check]++
			// How full this machine's disk is says nothing about the servers.
			if f.Level != "ok" && f.Check != "disk" {
				return fmt.Errorf("%s", line)
			}
		}
		if r.Code != 0 || seen["leader"] != 4 || seen["digest"] != 3 || seen["latency"] != 3 || seen["clocks"] != 1 {
			return fmt.Errorf("exit %d, checks %v, %s", r.Code, seen, r.Err)
		}
		return nil
	})
}

// restart stops a server in order and starts it again, in the middle of writes.
func restart(t *testing.T, c *systest.Cluster, w *writers, server int) {
	t.Helper()
	p := c.Dev.Servers[server]
	w.progress(t)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	w.progress(t)
	c.Restart(t, server)
	w.progress(t)
}

// killAndStart kills a server with SIGKILL and starts it again.
func killAndStart(t *testing.T, c *systest.Cluster, w *writers, server int) {
	t.Helper()
	w.progress(t)
	if err := c.Dev.Servers[server].Kill(); err != nil {
		t.Fatal(err)
	}
	w.progress(t)
	c.Restart(t, server)
	w.progress(t)
}

// writersCount is how many clients write at once.
const writersCount = 6

// writers write, each its own keys one after the other, every write until it is
// acknowledged.
type writers struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu       sync.Mutex
	acked    []string      // guarded by mu
	attempts int           // guarded by mu; the most that one write took
	slowest  time.Duration // guarded by mu
	last     error         // guarded by mu; of a failed attempt
}

func startWriters(c *systest.Cluster) *writers {
	ctx, cancel := context.WithCancel(context.Background())
	w := &writers{cancel: cancel}
	for n := range writersCount {
		w.wg.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				w.write(ctx, c, fmt.Sprintf("writer-%d/%05d", n, k), n+k)
			}
		})
	}
	return w
}

// write writes one key, beginning with some server.
func (w *writers) write(ctx context.Context, c *systest.Cluster, key string, first int) {
	began := time.Now()
	for attempt := 1; ctx.Err() == nil; attempt++ {
		// Long enough for a server that holds a write until there is a leader.
		actx, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := c.Ops.Clients[(first+attempt)%len(c.Ops.Clients)].PutConfig(actx, &operatorv1.PutConfigRequest{Key: key, Value: []byte(key)})
		cancel()
		w.mu.Lock()
		if err == nil {
			w.acked = append(w.acked, key)
			w.slowest = max(w.slowest, time.Since(began))
		} else if ctx.Err() == nil {
			w.last = err
		}
		w.attempts = max(w.attempts, attempt)
		w.mu.Unlock()
		if err == nil {
			return
		}
	}
}

func (w *writers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

// progress waits until a good many more writes were acknowledged.
func (w *writers) progress(t *testing.T) {
	t.Helper()
	from := w.count()
	systest.Eventually(t, settle, "writes go on", func() error {
		if n := w.count() - from; n < 100 {
			return fmt.Errorf("%d writes were acknowledged", n)
		}
		return nil
	})
}

func (w *writers) stop() {
	w.cancel()
	w.wg.Wait()
}

// wantAll wants every acknowledged write on every server.
func (w *writers) wantAll(t *testing.T, c *systest.Cluster) {
	t.Helper()
	t.Logf("%d writes were acknowledged, the slowest after %s, none with more than %d attempts (the last failure: %v)",
		len(w.acked), w.slowest.Round(time.Millisecond), w.attempts, w.last)
	if w.attempts > maxAttempts {
		t.Errorf("a write took %d attempts, want at most %d", w.attempts, maxAttempts)
	}
	c.WantSameState(t)
	ctx := systest.Deadline(t, 2*time.Minute)
	for i, op := range c.Ops.Clients {
		// One linearizable look; after it the server's own state is enough.
		lctx := metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable")
		for n, key := range w.acked {
			got, err := op.GetConfig(lctx, &operatorv1.GetConfigRequest{Key: key})
			if err != nil || string(got.GetValue()) != key {
				t.Fatalf("server %d: the acknowledged write of %s: %q, %v", i, key, got.GetValue(), err)
			}
			if n == 0 {
				lctx = metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "stale")
			}
		}
	}
}

// scrape reads the metrics at an admin address.
func scrape(t *testing.T, address string) []byte {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("metrics of %s: %s, %v", address, resp.Status, err)
	}
	return body
}

// adminOf is where a process's configuration says that its metrics are.
func adminOf(t *testing.T, c *systest.Cluster, name string) string {
	t.Helper()
	return load(t, filepath.Join(c.Dir, name+".yaml"))["admin"].(string)
}

// wantDocumentedMetrics compares what the node exposes with the catalogue. The
// servers' own test does that for theirs; here nothing may be unknown.
func wantDocumentedMetrics(t *testing.T, c *systest.Cluster) {
	t.Helper()
	const file = "../../docs/metrics.md"
	exposed, err := metricdoc.Exposed(bytes.NewReader(scrape(t, adminOf(t, c, systest.NodeName))))
	if err != nil {
		t.Fatal(err)
	}
	documented, err := metricdoc.Documented(file, metricdoc.Nodes)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range metricdoc.Compare(documented, exposed) {
		t.Errorf("node: %s", d)
	}
}

// look is something that may be shown to others, and a word that is in it for
// certain: one that is not found tells that nothing was looked at.
type look struct {
	where, known string
	content      []byte
}

func (l look) check(t *testing.T) {
	t.Helper()
	if !bytes.Contains(l.content, []byte(l.known)) {
		t.Errorf("%s (%d bytes) does not even hold %q, so a secret would not be found either", l.where, len(l.content), l.known)
	}
	for _, canary := range canaries {
		if bytes.Contains(l.content, []byte(canary)) {
			t.Errorf("%s shows %s", l.where, canary)
		}
	}
}

// wantNoSecrets looks at everything that the running cluster shows to anybody
// but the owner of the intercept.
func wantNoSecrets(t *testing.T, c *systest.Cluster) {
	t.Helper()
	dir := t.TempDir()
	operator := func(args ...string) []byte {
		t.Helper()
		r := c.Trivet(t, systest.OperatorContext, args...)
		if r.Code != 0 {
			t.Fatalf("trivet %s: exit %d, %s", strings.Join(args, " "), r.Code, r.Err)
		}
		return []byte(r.Out + r.Err)
	}
	bundle := filepath.Join(dir, "bundle.tar.gz")
	operator("operator", "bundle", "--file", bundle, "--cpu-profile", "1s")
	wantBundle(t, c, bundle)

	export := operator("audit", "export")
	look{"the audit", "intercept.create", export}.check(t)
	saved := filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(saved, export, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, out := range [][]byte{operator("audit", "verify", saved), operator("audit", "verify")} {
		if !strings.Contains(string(out), "security") || !strings.Contains(string(out), "whole") {
			t.Errorf("audit verify says %s", out)
		}
	}

	snapshot := filepath.Join(dir, "state.tar")
	operator("operator", "snapshot", "save", snapshot)
	raw, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	look{"the saved snapshot", systest.Workload + "-0", raw}.check(t)
	look{"the snapshot's inspection", "intercepts", operator("operator", "snapshot", "inspect", snapshot, "-o", "json")}.check(t)
	for _, list := range [][]string{{"session", "list"}, {"intercept", "list"}, {"workload", "list"}, {"node", "list"}, {"status"}} {
		look{strings.Join(list, " "), "\"", operator(append(list, "-o", "json")...)}.check(t)
	}
	other := c.Trivet(t, systest.OtherClientContext, "workload", "list", "-o", "json")
	look{"the list of another client", systest.Workload, []byte(other.Out + other.Err)}.check(t)
	for _, p := range c.Dev.Servers {
		look{"metrics of " + p.Name, "trivet_build_info", scrape(t, adminOf(t, c, p.Name))}.check(t)
		log, err := os.ReadFile(p.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		look{"the log of " + p.Name, `"level"`, log}.check(t)
	}
	look{"metrics of the node", "trivet_node", scrape(t, adminOf(t, c, systest.NodeName))}.check(t)
}

// wantBundle looks into a support bundle, and into the profiles in it, which
// are packed once more.
func wantBundle(t *testing.T, c *systest.Cluster, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if inner, err := gzip.NewReader(bytes.NewReader(b)); err == nil {
			if b, err = io.ReadAll(inner); err != nil {
				t.Errorf("%s in the bundle: %v", h.Name, err)
			}
		}
		names = append(names, strings.TrimPrefix(h.Name, "trivet-bundle/"))
		known := ""
		switch filepath.Base(h.Name) {
		case "metrics.txt":
			known = "trivet_raft_term"
		case "log.jsonl":
			known = `"level"`
		case "config.yaml":
			known = "dataDir"
		}
		look{h.Name + " in the bundle", known, b}.check(t)
	}
	want := []string{"version.txt", "doctor.json"}
	for _, p := range c.Dev.Servers {
		for _, file := range []string{"process.json", "config.yaml", "servers.json", "health.json", "metrics.txt", "log.jsonl", "heap.pprof", "goroutine.pprof", "cpu.pprof"} {
			want = append(want, p.Name+"/"+file)
		}
	}
	for _, file := range want {
		if !slices.Contains(names, file) {
			t.Errorf("the bundle lacks %s; it has %v", file, names)
		}
	}
}

// wantNothingOnDisk looks at every file that the servers and the node keep: the
// logs and snapshots of Raft, keys, what the node remembers. The workloads file
// is the source of the secret and no copy of it.
func wantNothingOnDisk(t *testing.T, c *systest.Cluster) {
	t.Helper()
	for _, p := range c.Dev.Servers {
		var all []byte
		snapshots := 0
		files(t, filepath.Join(c.Dir, p.Name), func(path string, content []byte) {
			all = append(all, content...)
			if strings.Contains(path, "snapshots") && filepath.Base(path) == "state.bin" {
				snapshots++
				look{path, systest.Workload + "-0", content}.check(t)
			}
		})
		look{"the data directory of " + p.Name, systest.Workload + "-0", all}.check(t)
		if snapshots == 0 {
			t.Errorf("%s has taken no snapshot", p.Name)
		}
	}
	var all []byte
	files(t, filepath.Join(c.Dir, systest.NodeName), func(_ string, content []byte) { all = append(all, content...) })
	look{"the state directory of the node", "", all}.check(t)
	// Not those of commands: the owner's says what the owner was given.
	logs := []string{c.Node.LogFile}
	for _, p := range c.Dev.Servers {
		logs = append(logs, p.LogFile)
	}
	for _, path := range logs {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		look{path, "level", content}.check(t)
	}
}

func files(t *testing.T, dir string, each func(path string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			each(path, content)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
