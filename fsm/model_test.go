package fsm

import (
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// model is sessions and intercepts as a reader of the contract would write
// them down: maps, no revisions, no indexes. All intercepts have the mechanism
// tcp, which all agents have.
type model struct {
	clients    map[string]bool
	agents     map[string]modelAgent
	intercepts map[string]modelIntercept
}

type modelAgent struct {
	workload, version string
	apiPort           int32
}

type modelIntercept struct {
	owner, workload string
	port            int32
	header          string // empty: all traffic
	wiretap         bool
	disposition     manager.InterceptDispositionType
	servedBy        string
}

func (i modelIntercept) claims() bool {
	switch i.disposition {
	case manager.InterceptDispositionType_ACTIVE, manager.InterceptDispositionType_WAITING,
		manager.InterceptDispositionType_NO_AGENT:
		return true
	}
	return false
}

func (i modelIntercept) conflictsWith(o modelIntercept) bool {
	return !i.wiretap && !o.wiretap && i.workload == o.workload && i.port == o.port &&
		(i.header == "" || o.header == "" || i.header == o.header)
}

// blocked tells whether some claiming intercept other than id is in the way.
func (m *model) blocked(id string, i modelIntercept) bool {
	for other, o := range m.intercepts {
		if other != id && o.claims() && i.conflictsWith(o) {
			return true
		}
	}
	return false
}

// usable tells whether a workload has agents, and all of one version.
func (m *model) usable(workload string) bool {
	versions := map[string]bool{}
	for _, a := range m.agents {
		if a.workload == workload {
			versions[a.version] = true
		}
	}
	return len(versions) == 1
}

// judge is what happens to the intercepts of a workload when its agents
// change; gone names the one whose service ended.
func (m *model) judge(workload, gone string) {
	for _, id := range slices.Sorted(maps.Keys(m.intercepts)) {
		i := m.intercepts[id]
		if i.workload != workload {
			continue
		}
		lost := gone != "" && i.servedBy == gone
		if lost {
			i.servedBy = ""
		}
		switch {
		case !m.usable(workload):
			if i.claims() || !m.blocked(id, i) {
				i.disposition, i.servedBy = manager.InterceptDispositionType_NO_AGENT, ""
			}
		case i.disposition == manager.InterceptDispositionType_NO_AGENT, lost && i.claims():
			i.disposition = manager.InterceptDispositionType_WAITING
		}
		m.intercepts[id] = i
	}
}

func (m *model) removeSession(id string) {
	for key, i := range m.intercepts {
		if i.owner == id {
			delete(m.intercepts, key)
		}
	}
	delete(m.clients, id)
	if a, ok := m.agents[id]; ok {
		delete(m.agents, id)
		m.judge(a.workload, id)
	}
}

// TestSessionsAndInterceptsFollowTheModel drives machine and model by the same
// random steps.
func TestSessionsAndInterceptsFollowTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := &modelRun{
			m: New(Options{RingSize: 32}),
			model: &model{
				clients: map[string]bool{}, agents: map[string]modelAgent{},
				intercepts: map[string]modelIntercept{},
			},
		}
		s.follower = &follower{cursor: s.m.Watch(0), rows: map[string]string{}}
		t.Repeat(map[string]func(*rapid.T){
			"client":  s.client,
			"agent":   s.agent,
			"depart":  s.depart,
			"expire":  s.expire,
			"create":  s.create,
			"remove":  s.remove,
			"review":  s.review,
			"review2": s.review,
			"":        s.compare,
		})
	})
}

type modelRun struct {
	m        *Machine
	model    *model
	follower *follower
}

func (s *modelRun) apply(t *rapid.T, c *commandv1.Command) *commandv1.Result {
	t.Helper()
	c.Version = CommandVersion
	res, err := s.m.Apply(Position{Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}})
	if err != nil {
		t.Fatal(err)
	}
	return res[0]
}

func expect(t *rapid.T, res *commandv1.Result, code commandv1.Code) {
	t.Helper()
	if res.GetCode() != code {
		t.Fatalf("result is %v, not %v", compact(res), code)
	}
}

func (s *modelRun) client(t *rapid.T) {
	name := genClient.Draw(t, "client")
	expect(t, s.apply(t, cmdArriveClient(name)), commandv1.Code_CODE_OK)
	s.model.clients[name] = true
}

func (s *modelRun) agent(t *rapid.T) {
	uid := rapid.SampledFrom([]string{"u1", "u2", "u3", "u4"}).Draw(t, "uid")
	a := modelAgent{
		workload: rapid.SampledFrom([]string{"web", "web", "api"}).Draw(t, "workload"),
		version:  rapid.SampledFrom([]string{"1", "1", "1", "2"}).Draw(t, "version"),
		apiPort:  rapid.Int32Range(1, 2).Draw(t, "port"),
	}
	info := agentInfo(a.workload, uid)
	info.Version, info.ApiPort = a.version, a.apiPort
	expect(t, s.apply(t, cmdArriveAgent(info)), commandv1.Code_CODE_OK)

	id := "agent:" + uid
	old, was := s.model.agents[id]
	s.model.agents[id] = a
	gone := ""
	if was && old.workload != a.workload {
		s.model.judge(old.workload, id)
	}
	if was && old.apiPort != a.apiPort {
		gone = id
	}
	s.model.judge(a.workload, gone)
}

func (s *modelRun) depart(t *rapid.T) {
	id := rapid.SampledFrom([]string{"alice", "bob", "carol", "agent:u1", "agent:u2", "agent:u3", "agent:u4"}).
		Draw(t, "session")
	expect(t, s.apply(t, cmdDepart(id)), commandv1.Code_CODE_OK)
	s.model.removeSession(id)
}

// expire removes sessions as the leader sees them, but one it saw long ago.
func (s *modelRun) expire(t *rapid.T) {
	op := &commandv1.ExpireSessions{}
	var ids []string
	for row := range s.m.Root().Sessions {
		switch rapid.IntRange(0, 5).Draw(t, "what") {
		case 0:
			op.Items = append(op.Items, &commandv1.ExpireSessions_Item{
				SessionId: row.GetId(), SeenModifyRevision: row.GetModifyRevision(),
			})
			ids = append(ids, row.GetId())
		case 1:
			op.Items = append(op.Items, &commandv1.ExpireSessions_Item{
				SessionId: row.GetId(), SeenModifyRevision: row.GetModifyRevision() - 1,
			})
		}
	}
	res := s.apply(t, &commandv1.Command{Op: &commandv1.Command_ExpireSessions{ExpireSessions: op}})
	expect(t, res, commandv1.Code_CODE_OK)
	for _, id := range ids {
		s.model.removeSession(id)
	}
}

func (s *modelRun) create(t *rapid.T) {
	i := modelIntercept{
		owner:    genClient.Draw(t, "client"),
		workload: rapid.SampledFrom([]string{"web", "web", "api"}).Draw(t, "workload"),
		port:     rapid.Int32Range(80, 81).Draw(t, "port"),
		header:   rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "header"),
		wiretap:  rapid.IntRange(0, 5).Draw(t, "wiretap") == 0,
	}
	name := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "name")
	spec := interceptSpec(i.owner, name, i.workload, i.port)
	spec.Wiretap = i.wiretap
	if i.header != "" {
		spec.HeaderFilters = map[string]string{"X-User": i.header}
	}
	id := interceptID(i.owner, name)
	dry := s.m.Root().CheckConflict(spec, i.owner)
	res := s.apply(t, cmdCreate(i.owner, spec))

	hasAgent := slices.ContainsFunc(slices.Collect(maps.Values(s.model.agents)), func(a modelAgent) bool {
		return a.workload == i.workload
	})
	old, exists := s.model.intercepts[id]
	same := exists && old.workload == i.workload && old.port == i.port && old.header == i.header &&
		old.wiretap == i.wiretap
	blocked := s.model.blocked(id, i)
	if (dry != nil) != blocked {
		t.Fatalf("the dry run says %v, the model %v", dry, blocked)
	}
	switch {
	case !s.model.clients[i.owner]:
		expect(t, res, commandv1.Code_CODE_NOT_FOUND)
	case same: // no time passes in this test
		expect(t, res, commandv1.Code_CODE_OK)
	case exists:
		expect(t, res, commandv1.Code_CODE_ALREADY_EXISTS)
	case !hasAgent:
		expect(t, res, commandv1.Code_CODE_NOT_FOUND)
	case blocked:
		expect(t, res, commandv1.Code_CODE_FAILED_PRECONDITION)
	default:
		expect(t, res, commandv1.Code_CODE_OK)
		i.disposition = manager.InterceptDispositionType_NO_AGENT
		if s.model.usable(i.workload) {
			i.disposition = manager.InterceptDispositionType_WAITING
		}
		s.model.intercepts[id] = i
	}
}

func (s *modelRun) remove(t *rapid.T) {
	owner := genClient.Draw(t, "client")
	name := rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "name")
	res := s.apply(t, &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{
		RemoveIntercept: &commandv1.RemoveIntercept{SessionId: owner, Name: name},
	}})
	if !s.model.clients[owner] {
		expect(t, res, commandv1.Code_CODE_NOT_FOUND)
		return
	}
	expect(t, res, commandv1.Code_CODE_OK)
	delete(s.model.intercepts, interceptID(owner, name))
}

func (s *modelRun) review(t *rapid.T) {
	ids := slices.Sorted(maps.Keys(s.model.intercepts))
	if len(ids) == 0 {
		t.Skip("nothing to review")
	}
	id := rapid.SampledFrom(ids).Draw(t, "intercept")
	agent := rapid.SampledFrom([]string{"agent:u1", "agent:u2", "agent:u3", "agent:u4"}).Draw(t, "agent")
	d := manager.InterceptDispositionType_ACTIVE
	if rapid.IntRange(0, 3).Draw(t, "refuses") == 0 {
		d = manager.InterceptDispositionType_AGENT_ERROR
	}
	expect(t, s.apply(t, cmdReview(agent, id, d)), commandv1.Code_CODE_OK)
	i := s.model.intercepts[id]
	a, ok := s.model.agents[agent]
	if ok && a.workload == i.workload && (i.disposition == manager.InterceptDispositionType_WAITING ||
		i.disposition == manager.InterceptDispositionType_NO_AGENT) {
		i.disposition, i.servedBy = d, ""
		if d == manager.InterceptDispositionType_ACTIVE {
			i.servedBy = agent
		}
		s.model.intercepts[id] = i
	}
}

// compare looks at everything after each step.
func (s *modelRun) compare(t *rapid.T) {
	root := s.m.Root()
	checkRoot(t, root)
	got := &model{
		clients: map[string]bool{}, agents: map[string]modelAgent{},
		intercepts: map[string]modelIntercept{},
	}
	for row := range root.Sessions {
		if a := row.GetAgent(); a != nil {
			got.agents[row.GetId()] = modelAgent{a.GetName(), a.GetVersion(), a.GetApiPort()}
		} else {
			got.clients[row.GetId()] = true
		}
	}
	for row := range root.Intercepts {
		got.intercepts[row.GetId()] = modelIntercept{
			owner: row.GetSessionId(), workload: row.GetSpec().GetAgent(),
			port: row.GetSpec().GetContainerPort(), header: row.GetSpec().GetHeaderFilters()["X-User"],
			wiretap: row.GetSpec().GetWiretap(), disposition: row.GetDisposition(),
			servedBy: row.GetAgentSessionId(),
		}
	}
	if diff := cmp.Diff(s.model, got, cmp.AllowUnexported(model{}, modelAgent{}, modelIntercept{})); diff != "" {
		t.Fatalf("machine differs from model (-model +machine):\n%s", diff)
	}
	for a, i := range got.intercepts {
		for b, o := range got.intercepts {
			if a < b && i.claims() && o.claims() && i.conflictsWith(o) {
				t.Fatalf("%s and %s conflict, and both claim", a, b)
			}
		}
		if row, _ := root.Intercept(a); i.servedBy == "" && (row.GetApiPort() != 0 && i.claims()) {
			t.Fatalf("%s is served by nobody, on port %d", a, row.GetApiPort())
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "follow") == 0 {
		s.follower.follow()
		if diff := cmp.Diff(contents(root), s.follower.rows); diff != "" {
			t.Fatalf("a follower differs:\n%s", diff)
		}
	}
	for _, workload := range []string{"web", "api"} {
		n := 0
		for _, a := range got.agents {
			if a.workload == workload {
				n++
			}
		}
		if found := len(slices.Collect(root.AgentsOf("default", workload))); found != n {
			t.Fatalf("%d agents of %s are found, not %d", found, workload, n)
		}
	}
	if root.Len(TableSessions) != len(got.agents)+len(got.clients) {
		t.Fatal("the length of the sessions table is wrong")
	}
}
