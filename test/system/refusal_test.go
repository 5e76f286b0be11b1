package system

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/cmd/trivet/bundles"
	"trivet/cmd/trivet/devenv"
	"trivet/internal/config"
	"trivet/internal/pki"
	"trivet/internal/render"
	"trivet/test/systest"
)

// TestBadInput gives the real binary what it has to refuse: each time with an
// exit code, one line of cause and one of what to do.
func TestBadInput(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	local := systest.StartLocal(t)
	port := strconv.Itoa(local.Port)
	create := func(args ...string) []string {
		if !slices.Contains(args, "--port") {
			args = append(args, "--port", port)
		}
		return append([]string{"intercept", "create", "mine", "--workload", systest.Workload}, args...)
	}
	foreignContext(t, c)
	expiredContext(t, c)
	c.AddContext(t, "node", c.Bundle(bundles.NodesDir, systest.NodeName))

	main := c.Intercept(t, systest.Create{Name: "main", Local: local.Port})
	before := c.SessionIDs(t, 0)
	for _, tc := range []struct {
		name, context string
		args          []string
		code          int
		cause, hint   string
	}{
		{
			"certificate of another CA", "foreign", create(), render.ExitDenied,
			"does not lead to this cluster's root", "use a bundle that this cluster's CA issued",
		},
		{"expired certificate", "expired", create(), render.ExitDenied, "expired at", "trivet login"},
		{
			"client's certificate for an operator's rpc", systest.ClientContext,
			[]string{"session", "list"},
			render.ExitDenied, "role client may not call", "roles [operator viewer]",
		},
		{
			"node's certificate for a client's rpc", "node", create(), render.ExitDenied,
			"role node may not call", "roles [client operator]",
		},
		{"unknown flag", "", create("--worklaod", "x"), render.ExitUsage, "unknown flag --worklaod; did you mean --workload?", "--help"},
		{"unknown command", "", []string{"intercpet", "list"}, render.ExitUsage, `did you mean "intercept"?`, "--help"},
		{
			"unknown workload", "", create("--workload", "wbe"), render.ExitNotFound,
			"workload default/wbe not found", "check the name and the namespace",
		},
		{
			"taken port", systest.OtherClientContext, create(), render.ExitConflict,
			fmt.Sprintf("conflicts with intercept %q of client", main.ID), "ask",
		},
		{
			"port that the workload does not have", "", create("--port", port+":htpt"), render.ExitUsage,
			`has no port "htpt": pass one of http/TCP, admin/TCP`, "as it declares it",
		},
		{"several ports and none named", "", create(), render.ExitUsage, "has several ports", "as it declares it"},
		{"port that is none", "", create("--port", "99999"), render.ExitUsage, `"99999" is not a port`, "LOCAL or LOCAL:REMOTE"},
		{"unknown context", "nowhere", create(), render.ExitNotFound, `"nowhere"`, systest.ClientContext},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "taken port" {
				tc.args = create("--port", port+":"+systest.PortName)
			}
			c.Trivet(t, tc.context, tc.args...).WantFailure(t, tc.code, tc.cause, tc.hint)
		})
	}
	// Nobody has lost or left anything.
	answeredBy(t, c, systest.Local)
	wantIntercept(t, c, main)
	wantSessions(t, c, before)
	c.WantSameState(t)
}

// entries are the files in a directory and what is in them.
func entries(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, dir)] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// foreignContext adds a context whose certificate is that of another cluster
// of the same name.
func foreignContext(t *testing.T, c *systest.Cluster) {
	t.Helper()
	dir := filepath.Join(c.Dir, "foreign")
	if _, err := bundles.Init(bundles.Options{
		Dir: dir, Cluster: devenv.ClusterName, Clients: []string{"mallory"}, TTL: time.Hour,
	}, time.Now()); err != nil {
		t.Fatal(err)
	}
	c.AddContext(t, "foreign", filepath.Join(dir, bundles.ClientsDir, "mallory"))
}

// expiredContext adds a context whose certificate ended so long ago that it is
// not renewed any more. It comes from a CA of that time: this cluster's is too
// young.
func expiredContext(t *testing.T, c *systest.Cluster) {
	t.Helper()
	dir := filepath.Join(c.Dir, "expired")
	if _, err := bundles.Init(bundles.Options{
		Dir: dir, Cluster: devenv.ClusterName, Clients: []string{"sleeper"}, TTL: time.Minute,
	}, time.Now().Add(-time.Hour-pki.RefreshWindow(pki.RoleClient))); err != nil {
		t.Fatal(err)
	}
	c.AddContext(t, "expired", filepath.Join(dir, bundles.ClientsDir, "sleeper"))
}

// TestDaemonsRefuseBadConfigurations starts servers and a node that must not
// run.
func TestDaemonsRefuseBadConfigurations(t *testing.T) {
	systest.Require(t)
	c := systest.StartServers(t)
	victim := c.Dev.Servers[2]
	if err := victim.Kill(); err != nil {
		t.Fatal(err)
	}
	server := func(t *testing.T, change func(f map[string]any)) systest.Result {
		t.Helper()
		f := load(t, filepath.Join(c.Dir, victim.Name+".yaml"))
		change(f)
		path := filepath.Join(systest.Dir(t), "server.yaml")
		save(t, path, f)
		return systest.Trivet(t, nil, "server", "run", "--config", path)
	}
	t.Run("main port in use", func(t *testing.T) {
		server(t, func(f map[string]any) { f["listen"] = c.Dev.Addresses[0] }).
			WantFailure(t, render.ExitConflict, "open the main port: listen tcp "+c.Dev.Addresses[0], "change listen or admin in")
	})
	t.Run("admin port in use", func(t *testing.T) {
		server(t, func(f map[string]any) { f["admin"] = c.Dev.Addresses[0] }).
			WantFailure(t, render.ExitConflict, "address already in use", "change listen or admin in")
	})
	t.Run("unknown key of a server", func(t *testing.T) {
		server(t, func(f map[string]any) { f["advertize"] = f["advertise"] }).
			WantFailure(t, render.ExitUsage, `advertize: unknown key; did you mean "advertise"?`, "keys allowed")
	})
	t.Run("certificate of another server", func(t *testing.T) {
		server(t, func(f map[string]any) { f["bundle"] = c.Bundle(bundles.ServersDir, c.Dev.Servers[0].Name) }).
			WantFailure(t, render.ExitUsage, "the certificate is for server", "correct these keys")
	})
	t.Run("certificate of a client for a server", func(t *testing.T) {
		server(t, func(f map[string]any) { f["bundle"] = c.Bundle(bundles.ClientsDir, systest.OtherClientContext) }).
			WantFailure(t, render.ExitUsage, "not for a server", "correct these keys")
	})
	t.Run("unknown key of a node", func(t *testing.T) {
		f := c.NodeConfig(t, 0)
		f["workloadFile"] = f["workloadsFile"]
		path := filepath.Join(systest.Dir(t), "node.yaml")
		save(t, path, f)
		systest.Trivet(t, nil, "node", "run", "--config", path).
			WantFailure(t, render.ExitUsage, `workloadFile: unknown key; did you mean "workloadsFile"?`, "keys allowed")
	})
	t.Run("certificate of a client for a node", func(t *testing.T) {
		f := c.NodeConfig(t, 0)
		f["bundle"] = c.Bundle(bundles.ClientsDir, systest.OtherClientContext)
		path := filepath.Join(systest.Dir(t), "node.yaml")
		save(t, path, f)
		systest.Trivet(t, nil, "node", "run", "--config", path).
			WantFailure(t, render.ExitConflict, "not that of node", "bundle to the directory of this node's own")
	})
	t.Run("wiped Raft state", func(t *testing.T) {
		// A copy, so that the server itself can come back.
		dir := filepath.Join(systest.Dir(t), "data")
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(c.Dir, victim.Name))); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
			t.Fatal(err)
		}
		before := entries(t, dir)
		server(t, func(f map[string]any) { f["dataDir"] = dir }).
			WantFailure(t, render.ExitConflict, "its Raft state is missing", "have an operator replace the server")
		if diff := cmp.Diff(before, entries(t, dir)); diff != "" {
			t.Errorf("the refused server changed its data directory (-before +after):\n%s", diff)
		}
	})
	// The server that was taken for all this is as good as before.
	c.Restart(t, 2)
	c.WantSameState(t)
	for _, p := range c.Dev.Servers {
		raw, err := os.ReadFile(p.LogFile)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(raw), "panic") {
			t.Errorf("%s: a panic is in its log", p.Name)
		}
	}
}

func load(t *testing.T, path string) map[string]any {
	t.Helper()
	f, err := config.Load[map[string]any](path)
	if err != nil {
		t.Fatal(err)
	}
	return *f
}

func save(t *testing.T, path string, v any) {
	t.Helper()
	if err := config.Save(path, v, 0o600); err != nil {
		t.Fatal(err)
	}
}
