package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// furnish fills the manager with what the lists show.
func furnish(r *rig) {
	ago := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(-d)) }
	f := r.f
	f.Change(func() {
		f.Status = operatorv1.StatusResponse{
			ClusterId: "c-1", Version: "0.1.0", Leader: "s1", Term: 3, Revision: 42, Ready: true,
			Agents: 2, Clients: 1, Intercepts: 1, Nodes: 2, Workloads: 2,
		}
		for i, s := range f.Servers {
			f.Status.Servers = append(f.Status.Servers, &operatorv1.Server{
				Id: "id-" + s.Name, Name: s.Name, Address: s.Address, Leader: i == 0, Voter: true, Reachable: true,
				Version: "0.1.0", Revision: 42,
			})
			f.Peers = append(f.Peers, &operatorv1.Peer{Id: "id-" + s.Name, Name: s.Name, Address: s.Address, Leader: i == 0, Voter: true})
			f.Digests[s.Name] = &operatorv1.DigestResponse{Server: s.Name, Revision: 42, Schema: 1, Digest: []byte{0xab, 0xcd}}
		}
		f.Nodes = []*operatorv1.Node{
			{Name: "n1", Version: "0.1.0", StealBackend: "sk_lookup", Kernel: "6.12", BootId: "b-1", Workloads: 2, Pods: 3, Connected: true, ReportedAt: ago(time.Minute)},
			{Name: "n2", StealBackend: "proxy", StealReason: "not root"},
		}
		f.Workloads = []*operatorv1.Workload{
			{
				Namespace: "shop", Name: "web", Kind: "process", Pods: 2, Agents: 1, Nodes: []string{"n1"}, InterceptedBy: []string{"alice@laptop"},
				Ports: []*operatorv1.Port{{Name: "http", Port: 80, Protocol: "TCP", Container: "web"}, {Port: 53, Protocol: "UDP"}},
			},
			{Namespace: "other", Name: "db", Kind: "process", Pods: 1, Ports: []*operatorv1.Port{{Port: 5432}}},
		}
		f.Clients = []*operatorv1.Session{
			{
				Id: "4f0c", Kind: "client", Name: "alice@laptop", Namespace: "shop", Version: "2.31.0+trivet",
				Identity: "spiffe://test/client/alice", CreatedAt: ago(2 * time.Hour), Attached: []string{"s1", "s2"},
			},
			{Id: "agent:uid-1", Kind: "agent", Name: "web", Namespace: "shop", PodName: "web-1", CreatedAt: ago(50 * time.Hour)},
		}
		f.Intercepts["4f0c:api"] = &manager.InterceptInfo{
			Id: "4f0c:api", ClientSession: &manager.SessionInfo{SessionId: "4f0c"},
			Disposition: manager.InterceptDispositionType_ACTIVE, ModifiedAt: ago(90 * time.Second),
			Spec: &manager.InterceptSpec{
				Name: "api", Client: "alice@laptop", Agent: "web", Namespace: "shop", ContainerPort: 80, ServicePortName: "http",
				TargetHost: "127.0.0.1", TargetPort: 8080,
			},
		}
	})
}

func TestListsInEveryFormat(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	furnish(r)
	for name, lines := range map[string][]string{
		"node":      {"node list", "node list -o wide", "node list -o json", "node list -o yaml", "node list -o jsonl"},
		"workload":  {"workload list", "workload list -n shop", "workload list -o wide", "workload list -o json", "workload list -n nowhere", "workload list -n nowhere -o json"},
		"session":   {"session list", "session list -o wide", "session list -o json"},
		"intercept": {"intercept list", "intercept list -o wide", "intercept list -o json", "intercept get api", "intercept get 4f0c:api -o yaml", "intercept get none", "intercept get none -o json", "intercept delete api", "intercept delete api -o json", "intercept list"},
		"operator":  {"operator raft list-peers", "operator raft list-peers -o json", "operator raft transfer-leadership --to s2", "operator raft transfer-leadership --to s2 -o json"},
		"context":   {"context list", "context list -o json", "context show", "context show shop-operator -o json", "context show --context shop-operator", "context use shop-operator", "context list", "context use shp", "context show none -o json"},
	} {
		r.golden(name, lines...)
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	furnish(r)
	r.golden("status", "status", "status -o json")
	// One server is gone: it is named, the rest is shown.
	r.f.Server("s2").Kill()
	out, _, code := r.run("status", "-o", "json")
	var v statusView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	for _, s := range v.Servers {
		if want := s.Name != "s2"; s.Reachable != want || (s.Error == "") != want {
			t.Errorf("server %+v, want reachable %v", s, want)
		}
	}
	// One hangs: status is not held up for long.
	r.f.Server("s3").Hang()
	start := time.Now()
	if _, _, code = r.run("status"); code != 0 || time.Since(start) > probeTimeout+5*time.Second {
		t.Errorf("with a hung server: exit %d after %s", code, time.Since(start))
	}
	// All are gone.
	r.f.Server("s1").Kill()
	r.f.Server("s3").Kill()
	out, errOut, code := r.run("status")
	if code != 6 || out != "" || !strings.Contains(errOut, "none of 3 servers answered") || !strings.Contains(errOut, "Hint:") {
		t.Errorf("without servers: exit %d, %q, %q", code, out, errOut)
	}
}

func TestDigest(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	furnish(r)
	r.golden("digest-equal", "operator digest", "operator digest -o json")
	r.f.Change(func() {
		r.f.Digests["s2"] = &operatorv1.DigestResponse{Server: "s2", Revision: 42, Schema: 1, Digest: []byte{1}}
	})
	r.golden("digest-differs", "operator digest", "operator digest -o json")
	r.f.Change(func() {
		r.f.Digests["s2"] = &operatorv1.DigestResponse{Server: "s2", Revision: 41, Schema: 1, Digest: []byte{1}}
	})
	r.golden("digest-not-comparable", "operator digest")
}

func TestBadCommandLines(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	r.golden("usage",
		"intercept create api --workload web --prot 8080",
		"status --ouput json",
		"status -z",
		"intercpt list",
		"intercept lst",
		"intercpt list --foo",
		"nonsense",
		"status extra",
		"status -o jsn",
		"status --consistency linear",
		"status --timeout soon",
		"status --timeout",
		"status --timeout -1s",
		"status --server localhost",
		"status --context shp",
		"intercept create",
		"intercept create a b --workload w --port 1",
		"intercept create api --port 8080",
		"intercept create api --workload web",
		"intercept create api --workload web --port http",
		"intercept create api --workload web --port 70000",
		"intercept create a:b --workload web --port 80",
		"intercept create api --workload web --port 80 --for -1s",
		"intercept create api --workload web --port 80 -o json",
		"intercept create api --workload web --port 80 --detach -- sh",
		"intercept create api --workload web --port 80 --",
		"intercept get",
		"intercept get a b",
		"context use",
		"intercept lst -o json",
	)
}

func TestHelp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for _, args := range [][]string{{}, {"--help"}, {"help"}} {
		out, errOut, code := r.run(args...)
		for _, word := range []string{"status", "intercept", "operator", "Exit codes:", "--consistency"} {
			if !strings.Contains(out, word) {
				t.Errorf("trivet %v: help does not mention %q", args, word)
			}
		}
		if code != 0 || errOut != "" {
			t.Errorf("trivet %v: exit %d, stderr %q", args, code, errOut)
		}
	}
	r.golden("help", "intercept --help", "intercept create --help", "operator raft")
}

func TestEveryCommandIsDocumented(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	root := newRoot(r.app(nil, nil), extraCommands)
	nouns := map[string]bool{}
	for _, cmd := range root.Commands() {
		if nouns[cmd.Name()] {
			t.Errorf("two commands are called %s", cmd.Name())
		}
		nouns[cmd.Name()] = true
		for _, sub := range append(cmd.Commands(), cmd) {
			if sub.Short == "" || strings.HasSuffix(sub.Short, ".") || sub.Args == nil && sub.Name() != "show" && sub.Runnable() {
				t.Errorf("%s: short text %q; it must be there, end without a dot, and arguments must be checked", sub.CommandPath(), sub.Short)
			}
		}
	}
}

func TestErrorsOfTheManager(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	furnish(r)
	for _, tt := range []struct {
		err  *errs.Error
		exit int
	}{
		{errs.New(codes.PermissionDenied, "ROLE_DENIED", "role client may not list sessions").WithHint("ask an operator"), 4},
		{errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "taken"), 5},
		{errs.New(codes.Internal, "BROKEN", "a broken\nstate"), 1},
		{errs.New(codes.DeadlineExceeded, "SLOW", "too slow"), 7},
	} {
		r.f.Answer("ListSessions", tt.err, tt.err)
		_, errOut, code := r.run("session", "list")
		if code != tt.exit || strings.Contains(errOut, "rpc error") || strings.Count(errOut, "\n") > 2 {
			t.Errorf("%s: exit %d, %q", tt.err.Code, code, errOut)
		}
		_, errOut, _ = r.run("session", "list", "-o", "json")
		var v struct {
			Error struct{ Code, Reason, Message, Hint string }
		}
		if err := json.Unmarshal([]byte(errOut), &v); err != nil || v.Error.Reason != tt.err.Reason || v.Error.Hint != tt.err.Hint {
			t.Errorf("%s: %v: %s", tt.err.Code, err, errOut)
		}
	}
}

func TestTimeoutAndNoServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	unavailable := errs.New(codes.Unavailable, "NO_QUORUM", "no leader")
	for range 100 {
		r.f.Answer("ListNodes", unavailable)
	}
	if _, errOut, code := r.run("node", "list", "--timeout", "500ms"); code != 6 || !strings.Contains(errOut, "no leader") {
		t.Errorf("no leader: exit %d, %q", code, errOut)
	}
	r.f.Server("s1").Kill()
	if _, errOut, code := r.run("node", "list", "--timeout", "30s"); code != 6 || !strings.Contains(errOut, "no server can be reached") {
		t.Errorf("no server: exit %d, %q", code, errOut)
	}
}

func TestEnvironmentStandsInForFlags(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	furnish(r)
	r.env["TRIVET_OUTPUT"] = "json"
	r.env["TRIVET_NAMESPACE"] = "other"
	r.env["TRIVET_CONTEXT"] = "shop-operator"
	r.env["TRIVET_SERVER"] = r.f.Servers[1].Address
	r.env["TRIVET_CONSISTENCY"] = "linearizable"
	out, _, code := r.run("workload", "list")
	if code != 0 || !strings.Contains(out, `"name": "db"`) || strings.Contains(out, `"web"`) {
		t.Errorf("exit %d, %s", code, out)
	}
	calls := r.f.Calls("ListWorkloads")
	if len(calls) != 1 || calls[0].Server != "s2" || calls[0].MD.Get("trivet-consistency")[0] != "linearizable" {
		t.Errorf("calls = %+v", calls)
	}
	// A flag wins.
	if out, _, _ = r.run("workload", "list", "-n", "shop", "-o", "jsonl"); !strings.HasPrefix(out, `{"name":"web"`) {
		t.Errorf("with flags: %s", out)
	}
	r.env["TRIVET_TIMEOUT"] = "soon"
	if _, errOut, code := r.run("workload", "list"); code != 2 || !strings.Contains(errOut, "TRIVET_TIMEOUT") {
		t.Errorf("exit %d, %s", code, errOut)
	}
}

func TestVersionNeedsNoServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	delete(r.env, "TRIVET_CONFIG")
	out, _, code := r.run("version", "-o", "json")
	var v buildView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 || v.Version == "" || !strings.HasPrefix(v.Go, "go") {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if out, _, _ = r.run("version"); !strings.HasPrefix(out, "trivet ") || strings.Count(out, "\n") != 1 {
		t.Errorf("version = %q", out)
	}
	if _, errOut, code := r.run("status"); code != 3 || !strings.Contains(errOut, "no context file") {
		t.Errorf("status without contexts: exit %d, %q", code, errOut)
	}
}
