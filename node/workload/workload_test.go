package workload_test

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/node/workload"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const good = `
workloads:
- namespace: default
  name: web
  pods:
  - name: web-1
    uid: given
    ip: 10.0.0.2
    pid: 42
    containers:
    - name: app
  - name: web-0
    ip: ::ffff:10.0.0.1
    netns: /run/netns/web
    containers:
    - name: app
      env: {COLOUR: blue}
      ports: [{name: http, port: 8080}, {port: 53, protocol: udp}]
- namespace: apps
  name: api
  kind: StatefulSet
  pods:
  - name: api-0.host
    ip: fd00::1
    containers:
    - name: app
      ports: [{port: 80, listen: "127.0.0.1:8080", app: "127.0.0.1:8081"}]
`

func parse(t *testing.T, node, doc string) *workload.Set {
	t.Helper()
	set, err := workload.Parse("workloads.yaml", node, []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestReportIsSortedAndComplete(t *testing.T) {
	t.Parallel()
	set := parse(t, "node-a", good)
	got := set.Report()
	port := func(name string, n int32, proto string) *commandv1.ContainerPort {
		return &commandv1.ContainerPort{Name: name, Port: n, Protocol: proto}
	}
	web0 := set.Workloads[1].Pods[0].UID
	want := []*commandv1.WorkloadReport{
		{Namespace: "apps", Name: "api", Kind: "StatefulSet", Pods: []*commandv1.Pod{{
			Name: "api-0.host", Uid: set.Workloads[0].Pods[0].UID, Ip: "fd00::1",
			Containers: []*commandv1.Container{{Name: "app", Ports: []*commandv1.ContainerPort{port("", 80, "TCP")}}},
		}}},
		{Namespace: "default", Name: "web", Kind: "Deployment", Pods: []*commandv1.Pod{
			{Name: "web-0", Uid: web0, Ip: "10.0.0.1", Containers: []*commandv1.Container{{
				Name: "app", Ports: []*commandv1.ContainerPort{port("http", 8080, "TCP"), port("", 53, "UDP")},
			}}},
			{Name: "web-1", Uid: "given", Ip: "10.0.0.2", Containers: []*commandv1.Container{{Name: "app"}}},
		}},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
}

func TestPodsAreWhereTheFileSays(t *testing.T) {
	t.Parallel()
	set := parse(t, "node-a", good)
	pods := map[string]workload.Net{}
	for _, w := range set.Workloads {
		for _, p := range w.Pods {
			pods[p.Name] = p.Net
		}
	}
	want := map[string]workload.Net{
		"web-0": {Path: "/run/netns/web"}, "web-1": {Path: "/proc/42/ns/net"}, "api-0.host": {},
	}
	if d := cmp.Diff(want, pods); d != "" {
		t.Errorf("namespaces (-want +got):\n%s", d)
	}
	p := set.Pod("default", "web", "given")
	if p == nil || p.IP != netip.MustParseAddr("10.0.0.2") {
		t.Errorf("pod is %v", p)
	}
	if set.Pod("default", "api", "given") != nil || set.Pod("default", "web", "none") != nil {
		t.Error("a pod is found that is not there")
	}
}

func TestUIDsAreStableAndTheNodesOwn(t *testing.T) {
	t.Parallel()
	uid := func(node string) string { return parse(t, node, good).Workloads[1].Pods[0].UID }
	first := uid("node-a")
	if again := uid("node-a"); first != again {
		t.Error("the same pod has another UID the next time")
	}
	if first == uid("node-b") {
		t.Error("pods of two nodes have the same UID")
	}
}

func TestProblemsAreNamedTogether(t *testing.T) {
	t.Parallel()
	pod := func(body string) string {
		return "workloads: [{namespace: a, name: w, pods: [{name: p, ip: 10.0.0.1, netns: /x, containers: [{name: c}], " + body + "}]}]"
	}
	port := func(body string) string {
		return "workloads: [{namespace: a, name: w, pods: [{name: p, ip: 10.0.0.1, netns: /x, containers: [{name: c, ports: [" + body + "]}]}]}]"
	}
	tests := map[string]struct{ doc, want string }{
		"nothing of a workload": {
			"workloads: [{}]",
			"workloads[0].namespace: missing; workloads[0].name: missing; workloads[0].pods: at least one pod is needed",
		},
		"nothing of a pod": {
			"workloads: [{namespace: a, name: w, pods: [{}]}]",
			"workloads[0].pods[0].name: missing; workloads[0].pods[0].ip: missing; workloads[0].pods[0].containers: at least one container is needed",
		},
		"names": {
			"workloads: [{namespace: A, name: w_, kind: 1x, pods: [{name: -p, uid: a/b, ip: 10.0.0.1, netns: /x, containers: [{name: C}]}]}]",
			`workloads[0].namespace: "A" is not a name of lower case letters`,
		},
		"address":          {pod("ip: 10.0.0"), `key "ip" already set`},
		"bad address":      {strings.Replace(pod("uid: u"), "10.0.0.1", "10.0.0", 1), `ip: "10.0.0" is not an IP address`},
		"two places":       {pod("pid: 3"), "workloads[0].pods[0]: netns and pid exclude each other"},
		"three places":     {pod("pid: 3, hostNetwork: true"), "netns and pid and hostNetwork exclude each other"},
		"relative netns":   {strings.Replace(pod("uid: u"), "/x", "x", 1), `netns: "x" is not an absolute path`},
		"pid":              {pod("pid: -1"), "pid: -1 is not a process id"},
		"port":             {port("{port: 70000}"), "ports[0].port: 70000 is not between 1 and 65535"},
		"no port":          {port("{name: http}"), "ports[0].port: 0 is not between 1 and 65535"},
		"protocol":         {port("{port: 1, protocol: SCTP}"), `protocol: "SCTP" is neither TCP nor UDP`},
		"listen alone":     {port(`{port: 1, listen: "127.0.0.1:1"}`), "listen and app belong together"},
		"listen is app":    {port(`{port: 1, listen: "127.0.0.1:1", app: "127.0.0.1:1"}`), "listen and app are the same address"},
		"listen of udp":    {port(`{port: 1, protocol: UDP, listen: "127.0.0.1:1", app: "127.0.0.1:2"}`), "listen works for TCP only"},
		"listen is a name": {port(`{port: 1, listen: "localhost:1", app: "127.0.0.1:2"}`), `listen: "localhost:1" is not an address with a port`},
		"no place at all": {
			strings.Replace(port("{port: 1}"), "netns: /x, ", "", 1),
			"ports[0]: the pod has no netns, pid or hostNetwork, so the port needs listen and app",
		},
		"port twice":      {port("{port: 1}, {port: 1, protocol: tcp}"), `ports[1].port: port "1/TCP" is there already`},
		"variable":        {"workloads: [{namespace: a, name: w, pods: [{name: p, ip: 10.0.0.1, netns: /x, containers: [{name: c, env: {a=b: c}}]}]}]", `env: "a=b" is not a name of a variable`},
		"unknown key":     {pod("netnss: y"), `workloads[0].pods[0].netnss: unknown key; did you mean "netns"?`},
		"workload twice":  {"workloads: [{namespace: a, name: w, pods: [{name: p, ip: 10.0.0.1, netns: /x, containers: [{name: c}]}]}, {namespace: a, name: w, pods: [{name: q, ip: 10.0.0.1, netns: /x, containers: [{name: c}]}]}]", `workloads[1]: workload "a/w" is there already, at workloads[0]`},
		"uid twice":       {"workloads: [{namespace: a, name: w, pods: [{name: p, uid: u, ip: 10.0.0.1, netns: /x, containers: [{name: c}]}, {name: q, uid: u, ip: 10.0.0.1, netns: /x, containers: [{name: c}]}]}]", `pods[1].uid: uid "u" is there already`},
		"container twice": {"workloads: [{namespace: a, name: w, pods: [{name: p, ip: 10.0.0.1, netns: /x, containers: [{name: c}, {name: c}]}]}]", `containers[1].name: container "c" is there already`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := workload.Parse("w.yaml", "node-a", []byte(tt.doc))
			e := errs.From(err)
			if e == nil || e.Code != codes.InvalidArgument || e.Reason != config.ReasonInvalid {
				t.Fatalf("error is %v", err)
			}
			if !strings.HasPrefix(e.Message, "w.yaml: ") || !strings.Contains(e.Message, tt.want) {
				t.Errorf("message is\n%s\nwant in it\n%s", e.Message, tt.want)
			}
		})
	}
}

func TestEnvironmentIsTheProcesssAndTheFiles(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"COLOUR=red", "SIZE=big", "EMPTY="}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	doc := strings.Replace(good, "env: {COLOUR: blue}", "env: {COLOUR: blue}\n      pid: "+strconv.Itoa(cmd.Process.Pid), 1)
	app := parse(t, "node-a", doc).Workloads[1].Pods[0].Containers[0]
	// Between fork and exec the process still has its parent's environment.
	var env map[string]string
	for range 1000 {
		var err error
		if env, err = app.Environment(); err != nil {
			t.Fatal(err)
		}
		if env["SIZE"] == "big" {
			break
		}
	}
	if d := cmp.Diff(map[string]string{"COLOUR": "blue", "SIZE": "big", "EMPTY": ""}, env); d != "" {
		t.Errorf("environment (-want +got):\n%s", d)
	}
	gone := parse(t, "node-a", strings.Replace(doc, strconv.Itoa(cmd.Process.Pid), "999999999", 1))
	env, err := gone.Workloads[1].Pods[0].Containers[0].Environment()
	if err == nil || env["COLOUR"] != "blue" {
		t.Errorf("environment of a process that is gone is %v, %v", env, err)
	}
}

func TestFileIsFollowed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workloads.yaml")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(path+".new", []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	logger := slog.New(slog.NewTextHandler(t.Output(), nil))
	if _, err := workload.Open(path, "node-a", logger); errs.Reason(err) != config.ReasonMissing {
		t.Errorf("a file that is not there: %v", err)
	}
	write(good)
	f, err := workload.Open(path, "node-a", logger)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	await := func(what string, changed <-chan struct{}) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(20 * time.Second):
			t.Fatalf("waited in vain for %s", what)
		}
	}

	_, changed := f.Get()
	write("workloads: []")
	await("the change of the file", changed)
	set, changed := f.Get()
	if len(set.Workloads) != 0 {
		t.Errorf("set is %v", set.Workloads)
	}
	// A file that is wrong changes nothing, and is followed on.
	write("workloads: [")
	for limit := time.Now().Add(20 * time.Second); f.Refused() == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("a wrong file is not counted")
		}
	}
	write(good)
	await("the next change", changed)
	set, changed = f.Get()
	if len(set.Workloads) != 2 {
		t.Errorf("set is %v", set.Workloads)
	}
	f.Reload()
	await("a reload without a change", changed)
}
