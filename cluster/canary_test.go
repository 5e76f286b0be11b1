package cluster_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	"trivet/cluster"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// The canaries: one for each way in which an environment enters the servers.
const (
	interceptCanary = "canary-intercept-5f1c8a"
	agentCanary     = "canary-agent-9be2d7"
	containerCanary = "canary-container-03d4aa"
	workloadCanary  = "canary-workload-77ab10"
)

var canaries = []string{interceptCanary, agentCanary, containerCanary, workloadCanary}

// places is where the canaries must not be; each returns what is there.
type places map[string]func() []byte

func (p places) check(t *testing.T) {
	t.Helper()
	for where, look := range p {
		content := look()
		if len(content) == 0 {
			t.Errorf("%s is empty, so nothing was looked at", where)
		}
		for _, canary := range canaries {
			if bytes.Contains(content, []byte(canary)) {
				t.Errorf("%s shows %s", where, canary)
			}
		}
	}
}

// syncLog is a log that is written by many and read by one.
type syncLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *syncLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *syncLog) content() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.buf.Bytes())
}

// TestSecretsOfEnvironmentsStayWithTheOwner plants secrets and looks for them
// everywhere.
func TestSecretsOfEnvironmentsStayWithTheOwner(t *testing.T) {
	logs := new(syncLog)
	f := newFleet(t, 3, func(c *cluster.Config) {
		c.Admin = "127.0.0.1:0"
		c.Logger = slog.New(slog.NewJSONHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	f.plantWorkload()
	node := f.manager(1, pki.RoleNode, "node-1")
	info := f.agentInfo()
	info.Environment = map[string]string{"PASSWORD": agentCanary}
	info.Containers = map[string]*manager.AgentInfo_ContainerInfo{"app": {Environment: map[string]string{"PASSWORD": containerCanary}}}
	agent, err := node.ArriveAsAgent(f.ctx, info)
	must(t, err)
	before := f.revision(1)
	again, err := node.ArriveAsAgent(f.ctx, info)
	must(t, err)
	if again.GetSessionId() != agent.GetSessionId() {
		t.Errorf("another session: %s", again.GetSessionId())
	}
	// Sealing is deterministic: the same agent again changes nothing.
	if row, ok := f.Servers[1].Server.Root().Session(agent.GetSessionId()); !ok || row.GetModifyRevision() > before {
		t.Errorf("arriving again changed the row: revision %d, was %d", row.GetModifyRevision(), before)
	}

	alice := f.manager(0, pki.RoleClient, "alice")
	sess := f.arriveClient(alice, "alice")
	_, err = alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	id := sess.GetSessionId() + ":one"
	_, err = node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: id, Disposition: manager.InterceptDispositionType_ACTIVE, Environment: map[string]string{"PASSWORD": interceptCanary},
	})
	must(t, err)
	f.ownerHasIt(alice, sess)

	p := places{"the log": logs.content}
	f.lookOverRPC(p, agent, id)
	for _, m := range f.Servers {
		p["metrics of "+m.Name] = func() []byte { _, body := get(t, "http://"+m.Server.AdminAddress()+"/metrics"); return []byte(body) }
	}
	p.check(t)

	for _, m := range f.Servers {
		if err := m.Server.Snapshot(); err != nil {
			t.Errorf("snapshot of %s: %v", m.Name, err)
		}
	}
	// Closed, so that all that is to be written is there.
	disk := places{"the log": logs.content}
	for _, m := range f.Servers {
		f.Stop(m)
		disk["the disk of "+m.Name] = func() []byte {
			content := allFiles(t, m.DataDir)
			if !bytes.Contains(content, []byte("echo-0")) {
				t.Errorf("the disk of %s does not even show the pod's name, so a secret would not be found either", m.Name)
			}
			return content
		}
	}
	disk.check(t)
}

// ownerHasIt: the one for whom it all is gets the environment.
func (f *fleet) ownerHasIt(alice managersvc.ManagerClient, sess *manager.SessionInfo) {
	f.t.Helper()
	got, err := alice.GetIntercept(f.ctx, &manager.GetInterceptRequest{Session: sess, Name: "one"})
	must(f.t, err)
	if got.GetEnvironment()["PASSWORD"] != interceptCanary {
		f.t.Errorf("GetIntercept shows the owner %v", got.GetEnvironment())
	}
	watch, err := alice.WatchIntercepts(f.ctx, sess)
	must(f.t, err)
	snap, err := watch.Recv()
	must(f.t, err)
	if len(snap.GetIntercepts()) != 1 || snap.GetIntercepts()[0].GetEnvironment()["PASSWORD"] != interceptCanary {
		f.t.Errorf("WatchIntercepts shows the owner %v", snap)
	}
}

// lookOverRPC adds what others than the owner can ask for.
func (f *fleet) lookOverRPC(p places, agent *manager.SessionInfo, intercept string) {
	f.t.Helper()
	ctx := f.ctx
	bob := f.manager(2, pki.RoleClient, "bob")
	bobs := f.arriveClient(bob, "bob")
	viewer, node := f.manager(0, pki.RoleViewer, "vera"), f.manager(1, pki.RoleNode, "node-1")
	op := operatorsvc.NewOperatorClient(f.Conn(f.Servers[0], pki.RoleOperator, "olga"))
	for name, ask := range map[string]func() (proto.Message, error){
		"WatchAgents of another client": func() (proto.Message, error) {
			s, err := bob.WatchAgents(ctx, bobs)
			must(f.t, err)
			return s.Recv()
		},
		"WatchIntercepts of the agent": func() (proto.Message, error) {
			s, err := node.WatchIntercepts(ctx, agent)
			must(f.t, err)
			return s.Recv()
		},
		"WatchIntercepts of a viewer": func() (proto.Message, error) {
			s, err := viewer.WatchIntercepts(ctx, new(manager.SessionInfo))
			must(f.t, err)
			return s.Recv()
		},
		"GetIntercept of the agent": func() (proto.Message, error) {
			return node.GetIntercept(ctx, &manager.GetInterceptRequest{Name: intercept})
		},
		"EnsureAgent of another client": func() (proto.Message, error) {
			return bob.EnsureAgent(ctx, &manager.EnsureAgentRequest{Session: bobs, Name: "echo", Namespace: "default"})
		},
		"ListSessions":   func() (proto.Message, error) { return op.ListSessions(ctx, new(operatorv1.ListSessionsRequest)) },
		"ListIntercepts": func() (proto.Message, error) { return op.ListIntercepts(ctx, new(operatorv1.ListInterceptsRequest)) },
		"ListWorkloads":  func() (proto.Message, error) { return op.ListWorkloads(ctx, new(operatorv1.ListWorkloadsRequest)) },
		"operator's GetIntercept": func() (proto.Message, error) {
			return op.GetIntercept(ctx, &operatorv1.GetInterceptRequest{Name: intercept})
		},
		"operator's Watch": func() (proto.Message, error) {
			s, err := op.Watch(ctx, new(operatorv1.WatchRequest))
			must(f.t, err)
			return s.Recv()
		},
		"the audit": func() (proto.Message, error) {
			// Whoever may list it gets these rows.
			out := new(operatorv1.ListAuditResponse)
			for class := range commandv1.AuditClass_name {
				for row := range f.Servers[0].Server.Root().Audit(commandv1.AuditClass(class), 0) {
					out.Records = append(out.Records, row)
				}
			}
			return out, nil
		},
	} {
		p[name] = func() []byte {
			m, err := ask()
			if err != nil {
				f.t.Errorf("%s: %v", name, err)
			}
			b, err := proto.Marshal(m)
			must(f.t, err)
			return b
		}
	}
	p["the support files"] = func() []byte {
		s, err := op.Collect(ctx, new(operatorv1.CollectRequest))
		must(f.t, err)
		var all []byte
		for {
			m, err := s.Recv()
			if errors.Is(err, io.EOF) {
				return all
			}
			must(f.t, err)
			b, err := proto.Marshal(m)
			must(f.t, err)
			all = append(all, b...)
		}
	}
}

// plantWorkload reports the workload again, with a secret in a container.
func (f *fleet) plantWorkload() {
	f.t.Helper()
	stream, err := nodesvc.NewNodeControlClient(f.Conn(f.Servers[0], pki.RoleNode, "node-1")).Sync(f.ctx)
	must(f.t, err)
	must(f.t, stream.Send(&nodev1.NodeReport{
		Hello: &nodev1.NodeHello{Name: "node-1", BootId: "boot", Version: "v1", StealBackend: "proxy"},
		Workloads: &nodev1.Workloads{Workloads: []*commandv1.WorkloadReport{{
			Namespace: "default", Name: "echo", Kind: "Deployment",
			Pods: []*commandv1.Pod{{Name: "echo-0", Uid: podUID, Ip: "10.0.0.5", Containers: []*commandv1.Container{{
				Name: "app", Ports: []*commandv1.ContainerPort{{Name: "http", Port: 8080, Protocol: "TCP"}},
				Environment: map[string]string{"PASSWORD": workloadCanary},
			}}}},
		}}},
	}))
	_, err = stream.Recv()
	must(f.t, err)
	row, ok := f.Servers[0].Server.Root().Workload("default", "echo")
	if c := row.GetPods()[0].GetContainers()[0]; !ok || len(c.GetSealedEnvironment()) == 0 || len(c.GetEnvironment()) > 0 {
		f.t.Errorf("the container's row holds %v", c)
	}
}

func (f *fleet) revision(server int) uint64 { return f.Servers[server].Server.Root().Revision() }

// allFiles is all that is below dir.
func allFiles(t *testing.T, dir string) []byte {
	t.Helper()
	var all []byte
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		all = append(all, data...)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// TestEnvironmentThatIsTooLarge keeps no agent from arriving and no intercept
// from being served; it is left out, which is counted and noted.
func TestEnvironmentThatIsTooLarge(t *testing.T) {
	f := newFleet(t, 1, func(c *cluster.Config) { c.Admin = "127.0.0.1:0" })
	node, alice := f.manager(0, pki.RoleNode, "node-1"), f.manager(0, pki.RoleClient, "alice")
	large := map[string]string{"BIG": strings.Repeat("x", 200<<10)}
	info := f.agentInfo()
	info.Containers = map[string]*manager.AgentInfo_ContainerInfo{"app": {Environment: large}}
	agent, err := node.ArriveAsAgent(f.ctx, info)
	must(t, err)
	sess := f.arriveClient(alice, "alice")
	_, err = alice.CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec("one")})
	must(t, err)
	_, err = node.ReviewIntercept(f.ctx, &manager.ReviewInterceptRequest{
		Session: agent, Id: sess.GetSessionId() + ":one", Disposition: manager.InterceptDispositionType_ACTIVE, Environment: large,
	})
	must(t, err)
	got, err := alice.GetIntercept(f.ctx, &manager.GetInterceptRequest{Session: sess, Name: "one"})
	must(t, err)
	if note := got.GetMetadata()["trivet-environment"]; len(got.GetEnvironment()) > 0 || !strings.Contains(note, "left out") {
		t.Errorf("%d variables, note %q", len(got.GetEnvironment()), note)
	}
	_, body := get(t, "http://"+f.Servers[0].Server.AdminAddress()+"/metrics")
	if !strings.Contains(body, "trivet_environments_dropped_total 2") {
		t.Error("two that were left out are not counted")
	}
}
