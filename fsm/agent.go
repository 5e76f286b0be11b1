package fsm

import (
	"bytes"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// agentPrefix starts the id of every agent session.
const agentPrefix = "agent:"

func (t *tx) arriveAgent(op *commandv1.ArriveAgent) *commandv1.Result {
	info := op.GetInfo()
	if res := checkAgent(info); res != nil {
		return res
	}
	id, res := t.agentID(op)
	if res != nil {
		return res
	}
	old, live := t.work.sessions.get(id)
	if live && !t.mayActFor(old.GetIdentity()) {
		return notYours(id)
	}
	if res := t.checkPodReported(info); res != nil {
		return res
	}
	sealed := op.GetSealedEnvironments()
	if t.since2() {
		if res := t.agentLimits(id, info, sealed, live); res != nil {
			return res
		}
	} else {
		sealed = nil
	}
	row := old
	if !live || !proto.Equal(old.GetAgent(), info) || !bytes.Equal(old.GetSealedEnvironments(), sealed) {
		row = t.putAgent(id, old, op, sealed)
	}
	gone := ""
	if live && restarted(old.GetAgent(), info) {
		gone = id
	}
	if was := old.GetAgent(); live && (was.GetNamespace() != info.GetNamespace() ||
		was.GetName() != info.GetName()) {
		t.recheck(was.GetNamespace(), was.GetName(), id)
	}
	t.recheck(info.GetNamespace(), info.GetName(), gone)
	return withSession(row)
}

// agentLimits refuses what is too large of an arriving agent, and one agent too
// many of an identity, which is a node.
func (t *tx) agentLimits(id string, info *manager.AgentInfo, sealed []byte, live bool) *commandv1.Result {
	if res := first(
		environmentTooLarge(info, sealed),
		t.bounded("agent information", info, maxAgentBytes),
		tooLong("name", info.GetName(), "namespace", info.GetNamespace(), "product", info.GetProduct(), "version", info.GetVersion(),
			"pod name", info.GetPodName(), "pod UID", info.GetPodUid(), "pod IP", info.GetPodIp(), "session id", strings.TrimPrefix(id, agentPrefix)),
	); res != nil || live {
		return res
	}
	return t.sessionLimit(commandv1.SessionKind_SESSION_KIND_AGENT, t.work.limits.GetAgentsPerNode(), ReasonLimitAgents, "agentsPerNode")
}

// environmentTooLarge refuses an agent for the size of its environments alone:
// without them it may arrive.
func environmentTooLarge(info *manager.AgentInfo, sealed []byte) *commandv1.Result {
	if res := sealedTooLarge(sealed); res != nil {
		return res
	}
	size := proto.Size(info)
	if size <= maxAgentBytes {
		return nil
	}
	bare := edit(info)
	bare.Environment, bare.Containers = nil, nil
	if rest := proto.Size(bare); rest <= maxAgentBytes {
		return environmentRefused(size-rest, maxAgentBytes-rest)
	}
	return nil
}

func checkAgent(info *manager.AgentInfo) *commandv1.Result {
	switch {
	case info.GetName() == "":
		return invalid("name must not be empty")
	case info.GetNamespace() == "":
		return invalid("namespace must not be empty")
	case info.GetProduct() == "":
		return invalid("product must not be empty")
	case info.GetVersion() == "":
		return invalid("version must not be empty")
	case len(info.GetMechanisms()) == 0:
		return invalid("mechanisms must not be empty")
	}
	for i, m := range info.GetMechanisms() {
		switch {
		case m.GetName() == "":
			return invalid("mechanism %d: name must not be empty", i+1)
		case m.GetProduct() == "":
			return invalid("mechanism %d: product must not be empty", i+1)
		case m.GetVersion() == "":
			return invalid("mechanism %d: version must not be empty", i+1)
		}
	}
	return nil
}

// agentID returns the session id of an arriving agent: the one it had, else
// one that follows from its pod, else a fresh one.
func (t *tx) agentID(op *commandv1.ArriveAgent) (string, *commandv1.Result) {
	hint, uid := op.GetSessionId(), op.GetInfo().GetPodUid()
	switch {
	case hint == "" && uid != "":
		return agentPrefix + uid, nil
	case hint == "" && t.cmd.GetStampedId() == "":
		return "", stampMissing()
	case hint == "":
		return agentPrefix + t.cmd.GetStampedId(), nil
	case !strings.HasPrefix(hint, agentPrefix) || hint == agentPrefix:
		return "", invalid("agent session id %q must start with %q", hint, agentPrefix)
	case uid != "" && hint != agentPrefix+uid:
		return "", invalid("agent session id %q does not belong to pod %q", hint, uid)
	}
	return hint, nil
}

// checkPodReported lets a node speak only for the pods it has reported.
func (t *tx) checkPodReported(info *manager.AgentInfo) *commandv1.Result {
	role, node := roleOf(t.cmd.GetIdentity())
	if role != roleNode {
		return nil
	}
	workload, _ := t.work.Workload(info.GetNamespace(), info.GetName())
	for _, pod := range workload.GetPods() {
		same := pod.GetUid() == info.GetPodUid()
		if info.GetPodUid() == "" {
			same = pod.GetName() == info.GetPodName()
		}
		if same && pod.GetNode() == node {
			return nil
		}
	}
	return hinted(refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonPodNotReported,
		"node %q has not reported pod %q (uid %q) of workload %s/%s", node, info.GetPodName(),
		info.GetPodUid(), info.GetNamespace(), info.GetName()),
		"report the node's workloads before its agents arrive")
}

func (t *tx) putAgent(
	id string, old *commandv1.SessionRow, op *commandv1.ArriveAgent, sealed []byte,
) *commandv1.SessionRow {
	var row *commandv1.SessionRow
	if old != nil {
		row = edit(old)
	} else {
		row = &commandv1.SessionRow{
			Id:        id,
			Kind:      commandv1.SessionKind_SESSION_KIND_AGENT,
			Identity:  t.cmd.GetIdentity(),
			Compat:    op.GetCompat(),
			CreatedAt: t.now(),
		}
		if op.GetInfo().GetPodUid() != "" {
			row.Generation = commandv1.Generation_GENERATION_NEWER
		}
	}
	row.Agent, row.SealedEnvironments = op.GetInfo(), sealed
	put(t, &t.work.sessions, row)
	return row
}

// restarted tells whether the agent behind a session is another process than
// before: then nothing it agreed to holds any more.
func restarted(was, is *manager.AgentInfo) bool {
	return was.GetPodIp() != is.GetPodIp() || was.GetPodName() != is.GetPodName() ||
		was.GetApiPort() != is.GetApiPort() || was.GetSftpPort() != is.GetSftpPort() ||
		was.GetFtpPort() != is.GetFtpPort()
}

// verdict says whether the agents of a workload can serve an intercept. The
// zero disposition means that they can.
type verdict struct {
	disposition manager.InterceptDispositionType
	message     string
}

func (v verdict) ok() bool { return v.disposition == manager.InterceptDispositionType_UNSPECIFIED }

// agentCheck returns the function that judges intercepts of one workload by
// their mechanism. The agents are looked at once.
func (r *Root) agentCheck(namespace, workload string) func(mechanism string) verdict {
	var first *manager.AgentInfo
	consistent := true
	for session := range r.AgentsOf(namespace, workload) {
		if first == nil {
			first = session.GetAgent()
			continue
		}
		if !alike(first, session.GetAgent()) {
			consistent = false
			break
		}
	}
	return func(mechanism string) verdict {
		noAgent := manager.InterceptDispositionType_NO_AGENT
		switch {
		case first == nil:
			return verdict{noAgent, `No agent found for "` + workload + `"`}
		case !consistent:
			return verdict{noAgent, `Agents for "` + workload + `" are not consistent`}
		case !slices.ContainsFunc(first.GetMechanisms(), func(m *manager.AgentInfo_Mechanism) bool {
			return m.GetName() == mechanism
		}):
			return verdict{
				manager.InterceptDispositionType_NO_MECHANISM,
				`Agents for "` + workload + `" do not have mechanism "` + mechanism + `"`,
			}
		}
		return verdict{}
	}
}

// alike tells whether two agents of a workload are interchangeable.
func alike(a, b *manager.AgentInfo) bool {
	if a.GetProduct() != b.GetProduct() || a.GetVersion() != b.GetVersion() {
		return false
	}
	if slices.EqualFunc(a.GetMechanisms(), b.GetMechanisms(), sameMechanism) {
		return true // the common case, without building sets
	}
	am, bm := mechanismSet(a), mechanismSet(b)
	if len(am) != len(bm) {
		return false
	}
	for name, m := range am {
		if o, ok := bm[name]; !ok || !sameMechanism(o, m) {
			return false
		}
	}
	return true
}

func sameMechanism(a, b *manager.AgentInfo_Mechanism) bool {
	return a.GetName() == b.GetName() && a.GetProduct() == b.GetProduct() &&
		a.GetVersion() == b.GetVersion()
}

func mechanismSet(a *manager.AgentInfo) map[string]*manager.AgentInfo_Mechanism {
	set := make(map[string]*manager.AgentInfo_Mechanism, len(a.GetMechanisms()))
	for _, m := range a.GetMechanisms() {
		set[m.GetName()] = m
	}
	return set
}

// recheck judges the intercepts of a workload anew after its agents changed.
// gone is the agent session whose service has ended, empty if none has.
func (t *tx) recheck(namespace, workload, gone string) {
	rows := slices.Collect(t.work.InterceptsFor(namespace, workload))
	if len(rows) == 0 {
		return
	}
	check := t.work.agentCheck(namespace, workload)
	for _, row := range rows {
		t.rejudge(row, check(row.GetSpec().GetMechanism()), gone)
	}
}

// rejudge applies a verdict to one intercept.
func (t *tx) rejudge(row *commandv1.InterceptRow, v verdict, gone string) {
	lost := gone != "" && row.GetAgentSessionId() == gone
	is := verdict{row.GetDisposition(), row.GetMessage()}
	next := is.after(v, lost)
	// A row that had lost its claim may not win it back over somebody else's.
	if !claims(is.disposition) && claims(next.disposition) &&
		t.work.conflictOf(row) != nil {
		next = is
	}
	if next == is && !lost {
		return
	}
	row = edit(row)
	row.Disposition, row.Message = next.disposition, next.message
	clearAgent(row)
	t.touch(row)
}

// after returns what becomes of an intercept's present disposition when its
// agents are judged by v; lost tells that the one that serves it is gone.
func (is verdict) after(v verdict, lost bool) verdict {
	waiting := verdict{disposition: manager.InterceptDispositionType_WAITING}
	switch is.disposition {
	case manager.InterceptDispositionType_REMOVED, manager.InterceptDispositionType_NO_CLIENT,
		manager.InterceptDispositionType_NO_PORTS, manager.InterceptDispositionType_BAD_ARGS:
		return is
	case manager.InterceptDispositionType_NO_AGENT:
		if v.ok() {
			return waiting
		}
	default:
		if v.ok() && lost && claims(is.disposition) {
			return waiting
		}
		if v.ok() {
			return is
		}
	}
	return v
}

// clearAgent forgets which agent serves an intercept and where.
func clearAgent(row *commandv1.InterceptRow) {
	row.AgentSessionId = ""
	row.PodIp, row.PodName = "", ""
	row.ApiPort, row.SftpPort, row.FtpPort = 0, 0, 0
}
