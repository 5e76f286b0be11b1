package fsm

import (
	"fmt"
	"strings"
	"testing"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// TestWhatComesFromOutsideIsBounded breaks one bound at a time.
func TestWhatComesFromOutsideIsBounded(t *testing.T) {
	t.Parallel()
	name, line := strings.Repeat("x", maxText+1), strings.Repeat("x", maxLine+1)
	many := make([]string, maxEntries+1)
	counts := map[string]int32{}
	for i := range many {
		many[i] = "80"
		counts[fmt.Sprint(i)] = 1
	}
	client := func(change func(*manager.ClientInfo)) *commandv1.Command {
		c := cmdArriveClient("new")
		change(c.GetArriveClient().GetInfo())
		return c
	}
	agent := func(change func(*manager.AgentInfo)) *commandv1.Command {
		info := agentInfo("web", "w9")
		change(info)
		return cmdArriveAgent(info)
	}
	intercept := func(change func(*manager.InterceptSpec)) *commandv1.Command {
		spec := interceptSpec("alice", "two", "web", 81)
		change(spec)
		return cmdCreate("alice", spec)
	}
	report := func(change func(*commandv1.WorkloadReport)) *commandv1.Command {
		w := &commandv1.WorkloadReport{Namespace: "default", Name: "web", Pods: []*commandv1.Pod{{Name: "p", Containers: []*commandv1.Container{{Name: "app"}}}}}
		change(w)
		return &commandv1.Command{Op: &commandv1.Command_ReportWorkloads{ReportWorkloads: &commandv1.ReportWorkloads{
			Node: "n1", Workloads: []*commandv1.WorkloadReport{w},
		}}}
	}
	review := func(change func(*manager.ReviewInterceptRequest)) *commandv1.Command {
		c := cmdReview("agent:w1", "alice:one", 1)
		change(c.GetReviewIntercept().GetReview())
		return c
	}
	for what, c := range map[string]*commandv1.Command{
		"name of 513 bytes":              client(func(i *manager.ClientInfo) { i.Name = name }),
		"client information: api_key is": client(func(i *manager.ClientInfo) { i.ApiKey = line }),
		"pod UID of 513 bytes":           agent(func(i *manager.AgentInfo) { i.PodUid = name }),
		"agent information: kind is":     agent(func(i *manager.AgentInfo) { i.Kind = line }),
		"containers mounts has 1025": agent(func(i *manager.AgentInfo) {
			i.Containers = map[string]*manager.AgentInfo_ContainerInfo{"a": {Mounts: counts}}
		}),
		"mechanisms name is longer":           agent(func(i *manager.AgentInfo) { i.Mechanisms[0].Name = line }),
		"intercept: local_ports has 1025":     intercept(func(s *manager.InterceptSpec) { s.LocalPorts = many }),
		"intercept: metadata is longer":       intercept(func(s *manager.InterceptSpec) { s.Metadata = map[string]string{"a": line, "b": line} }),
		"intercept: mechanism_args is longer": intercept(func(s *manager.InterceptSpec) { s.MechanismArgs = []string{line} }),
		"node information: kernel is longer":  {Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{Node: &commandv1.NodeRow{Name: "n", Kernel: line}}}},
		"report: kind is longer":              report(func(w *commandv1.WorkloadReport) { w.Kind = line }),
		"report: pods uid is longer":          report(func(w *commandv1.WorkloadReport) { w.Pods[0].Uid = line }),
		"report: pods containers name is":     report(func(w *commandv1.WorkloadReport) { w.Pods[0].Containers[0].Name = line }),
		"review: mounts has 1025":             review(func(r *manager.ReviewInterceptRequest) { r.Mounts = counts }),
		"review: mount_point is longer":       review(func(r *manager.ReviewInterceptRequest) { r.MountPoint = line }),
		"identity of 513 bytes":               {Op: &commandv1.Command_PutIdentity{PutIdentity: &commandv1.PutIdentity{Uri: name}}},
		"boot id of 513 bytes":                {Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{Server: &commandv1.ServerRow{Id: "s", BootId: name}}}},
		"policy: identities has 1025":         {Op: &commandv1.Command_PutPolicy{PutPolicy: &commandv1.PutPolicy{Policy: &commandv1.PolicyRow{Name: "p", Identities: many}}}},
		"session id of 513 bytes":             {Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{Info: agentInfo("web", ""), SessionId: "agent:" + name}}},
		"client information of 16": client(func(i *manager.ClientInfo) {
			i.ProtoReflect().SetUnknown([]byte("\x9a\x06\x80\x80\x01" + strings.Repeat("x", 16<<10)))
		}),
		"node information: steal_reason is": {Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{Node: &commandv1.NodeRow{Name: "n", StealReason: line}}}},
		"intercept: service_uid is longer":  intercept(func(s *manager.InterceptSpec) { s.ServiceUid = line }),
		"agent information: containers mount_": agent(func(i *manager.AgentInfo) {
			i.Containers = map[string]*manager.AgentInfo_ContainerInfo{"a": {MountPoint: line}}
		}),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, Options{})
			populate(r)
			r.ok(cmdArriveClient("bob"))
			r.ok(&commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: "agent:w1"}}})
			r.ok(cmdArriveAgent(agentInfo("web", "w1")))
			res := r.do(c)
			if res.GetReason() != ReasonTooLarge || res.GetCode() != commandv1.Code_CODE_INVALID_ARGUMENT || !strings.Contains(res.GetMessage(), what) {
				t.Errorf("result is %v", compact(res))
			}
		})
	}
}

// TestTheSameProblemIsNamedEverywhere: two entries of a map are wrong, and maps
// have no order.
func TestTheSameProblemIsNamedEverywhere(t *testing.T) {
	t.Parallel()
	line := strings.Repeat("x", maxLine+1)
	seen := map[string]bool{}
	for range 50 {
		seen[newEncoder().oversized((&manager.AgentInfo{Containers: map[string]*manager.AgentInfo_ContainerInfo{
			"a": {MountPoint: line}, "b": {Mounts: map[string]int32{line: 1}}, "c": {MountPoint: line, Mounts: map[string]int32{line: 1}}, "d": {},
		}}).ProtoReflect())] = true
	}
	if len(seen) != 1 || seen[""] {
		t.Errorf("problems are %v", seen)
	}
}

// TestTooLargeAnEnvironmentHasAReasonOfItsOwn: whoever sent it can send the
// rest.
func TestTooLargeAnEnvironmentHasAReasonOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	r.ok(cmdDepart("agent:w1"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	big := strings.Repeat("x", maxAgentBytes+1)
	sealed := make([]byte, maxSealedBytes+1)
	own, contained, closed := agentInfo("web", "w2"), agentInfo("web", "w2"), cmdArriveAgent(agentInfo("web", "w2"))
	own.Environment = map[string]string{"BIG": big}
	contained.Containers = map[string]*manager.AgentInfo_ContainerInfo{"app": {Environment: map[string]string{"BIG": big}}}
	closed.GetArriveAgent().SealedEnvironments = sealed
	review := cmdReview("agent:w1", "alice:one", 1)
	review.GetReviewIntercept().SealedEnvironment = sealed
	for name, c := range map[string]*commandv1.Command{
		"the agent's": cmdArriveAgent(own), "a container's": cmdArriveAgent(contained), "a sealed one": closed, "an intercept's": review,
	} {
		if res := r.do(c); res.GetReason() != ReasonEnvironmentTooLarge || res.GetCode() != commandv1.Code_CODE_INVALID_ARGUMENT {
			t.Errorf("%s: %v", name, compact(res))
		}
	}
	r.ok(cmdArriveAgent(agentInfo("web", "w2")))
}

// TestSealedBytesAreKeptAsTheyAre: nothing here looks into them.
func TestSealedBytesAreKeptAsTheyAre(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	again := cmdArriveAgent(agentInfo("web", "w1"))
	again.GetArriveAgent().SealedEnvironments = []byte("one")
	r.ok(again)
	r.ok(cmdDepart("agent:w1"))
	again = cmdArriveAgent(agentInfo("web", "w1"))
	again.GetArriveAgent().SealedEnvironments = []byte("two")
	if got := string(r.ok(again).GetSession().GetSealedEnvironments()); got != "two" {
		t.Errorf("the agent has %q", got)
	}
	review := cmdReview("agent:w1", "alice:one", 1)
	review.GetReviewIntercept().Review.Environment = nil
	review.GetReviewIntercept().SealedEnvironment = []byte("three")
	r.ok(review)
	row, _ := r.m.Root().Intercept("alice:one")
	if string(row.GetSealedEnvironment()) != "three" || len(row.GetEnvironment()) != 0 {
		t.Errorf("the intercept has %v", compact(row))
	}
	for _, audience := range []Audience{AudienceReader, AudienceAgent, AudienceOwner} {
		if s := InterceptInfo(row, audience).String(); strings.Contains(s, "three") {
			t.Errorf("audience %d sees %s", audience, s)
		}
	}
	sameState(t, r.m.Root(), restored(t, snapshotOf(t, r.m)).m.Root())
}

// TestMessageOfAReviewIsCut: it must not keep an intercept from being decided.
func TestMessageOfAReviewIsCut(t *testing.T) {
	t.Parallel()
	r := newRig(t, Options{})
	populate(r)
	r.ok(cmdDepart("agent:w1"))
	r.ok(cmdArriveAgent(agentInfo("web", "w1")))
	c := cmdReview("agent:w1", "alice:one", manager.InterceptDispositionType_AGENT_ERROR)
	c.GetReviewIntercept().GetReview().Message = strings.Repeat("\u00e9", maxLine)
	if got := r.ok(c).GetIntercept(); len(got.GetMessage()) != maxLine || got.GetDisposition() != manager.InterceptDispositionType_AGENT_ERROR {
		t.Errorf("%d bytes of message, %v", len(got.GetMessage()), got.GetDisposition())
	}
}
