package fsm

import (
	"fmt"
	"math"
	"net/netip"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// sameRequestWindow is how long after its creation an intercept is
	// returned to a repeated request for the very same one: stock clients
	// number nothing and repeat a call whose answer was lost.
	sameRequestWindow = 30 * 1e9
	// maxFilters bounds each list of filters, because two intercepts are
	// compared filter by filter.
	maxFilters = 64
	// maxFilterBytes bounds one filter.
	maxFilterBytes = 1024

	waitingMessage = "Waiting for Agent approval"
)

func interceptID(sessionID, name string) string { return sessionID + ":" + name }

// touch stores a changed intercept row.
func (t *tx) touch(row *commandv1.InterceptRow) {
	row.ModifiedAt = t.now()
	put(t, &t.work.intercepts, row)
}

// deleteIntercept removes an intercept with its further ports.
func (t *tx) deleteIntercept(row *commandv1.InterceptRow) {
	for _, child := range t.childrenOf(row) {
		drop(t, &t.work.intercepts, child.GetId())
	}
	// A child whose parent went first is gone.
	if _, ok := t.work.intercepts.get(row.GetId()); ok {
		drop(t, &t.work.intercepts, row.GetId())
	}
	t.dropIdleWorkload(row.GetSpec().GetNamespace(), row.GetSpec().GetAgent())
}

func (t *tx) createIntercept(op *commandv1.CreateIntercept) *commandv1.Result {
	session, res := t.clientSession(op.GetSessionId())
	if res != nil {
		return res
	}
	spec := op.GetSpec()
	if res := checkSpec(spec); res != nil {
		return res
	}
	if op.GetLease() < 0 {
		return invalid("lease must not be negative")
	}
	if t.since2() {
		if res := first(
			t.bounded("intercept", spec, maxSpecBytes),
			tooLong("name", spec.GetName(), "client", spec.GetClient(), "agent", spec.GetAgent(), "namespace", spec.GetNamespace(),
				"mechanism", spec.GetMechanism(), "port identifier", spec.GetPortIdentifier(), "service name", spec.GetServiceName()),
		); res != nil {
			return res
		}
	}
	if session.GetCompat() && (spec.GetReplace() || op.GetForce()) {
		return refuse(commandv1.Code_CODE_PERMISSION_DENIED, ReasonCompatNotAllowed,
			"a client without a certificate may neither replace a container nor displace anybody")
	}
	workload, known := t.work.Workload(spec.GetNamespace(), spec.GetAgent())
	resolved, unresolved := resolveSpec(workload, spec)
	id := interceptID(session.GetId(), spec.GetName())
	if old, ok := t.work.intercepts.get(id); ok {
		if old.GetDisposition() != manager.InterceptDispositionType_REMOVED {
			return t.createdBefore(old, spec, resolved)
		}
		drop(t, &t.work.intercepts, id)
	}
	switch {
	case !known && !t.hasAgents(spec.GetNamespace(), spec.GetAgent()):
		return workloadNotFound(spec.GetNamespace(), spec.GetAgent())
	case unresolved != nil:
		return hinted(refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonPortUnresolved, "%v", unresolved),
			"name a port of the workload as it declares it, or by number; with /TCP or /UDP where both have it")
	}
	var policy *commandv1.PolicyRow
	var ports []*manager.InterceptSpec
	if t.since2() {
		if ports, res = t.furtherPorts(session, workload, resolved); res != nil {
			return res
		}
		if res := t.interceptLimits(session, resolved); res != nil {
			return res
		}
		if policy, res = t.work.CheckPolicy(session.GetIdentity(), resolved); res != nil {
			return res
		}
	}
	displaced, res := t.displace(session, resolved, id, op.GetForce())
	if res != nil {
		return res
	}
	v := t.work.agentCheck(spec.GetNamespace(), spec.GetAgent())(spec.GetMechanism())
	if v.ok() {
		v = verdict{manager.InterceptDispositionType_WAITING, waitingMessage}
	}
	row := &commandv1.InterceptRow{
		Id:          id,
		SessionId:   session.GetId(),
		Spec:        resolved,
		Disposition: v.disposition,
		Message:     v.message,
		OwnerState:  commandv1.OwnerState_OWNER_STATE_PRESENT,
		Compat:      session.GetCompat(),
		CreatedAt:   t.now(),
		LeaseUntil:  t.after(leaseUnder(policy, op.GetLease())),
		Policy:      policy.GetName(),
		Identity:    session.GetIdentity(),
	}
	t.touch(row)
	t.putChildren(row, ports)
	created := withIntercept(row)
	created.Message = displaced
	return created
}

// after returns the time that lies a duration ahead; 0 for none.
func (t *tx) after(d int64) int64 {
	switch {
	case d == 0:
		return 0
	case d > math.MaxInt64-t.now():
		return math.MaxInt64
	}
	return t.now() + d
}

func checkSpec(spec *manager.InterceptSpec) *commandv1.Result {
	switch {
	case spec.GetClient() == "":
		return invalid("client must not be empty")
	case spec.GetAgent() == "":
		return invalid("agent must not be empty")
	case spec.GetNamespace() == "":
		return invalid("namespace must not be empty")
	case spec.GetMechanism() == "":
		return invalid("mechanism must not be empty")
	case spec.GetName() == "":
		return invalid("name must not be empty")
	}
	if host := spec.GetTargetHost(); host != "" {
		if addr, err := netip.ParseAddr(host); err != nil || addr.Zone() != "" {
			return invalid("target host must be an IP address")
		}
	}
	if len(spec.GetHeaderFilters()) > maxFilters || len(spec.GetPathFilters()) > maxFilters ||
		len(spec.GetPodPorts()) > maxFilters {
		return invalid("an intercept can have at most %d headers, paths and pod ports each", maxFilters)
	}
	for name, value := range spec.GetHeaderFilters() {
		if len(name) > maxFilterBytes || len(value) > maxFilterBytes {
			return invalid("a header filter must not be longer than %d bytes", maxFilterBytes)
		}
	}
	for _, p := range spec.GetPathFilters() {
		if len(p) > maxFilterBytes {
			return invalid("a path filter must not be longer than %d bytes", maxFilterBytes)
		}
	}
	return checkPodPorts(spec)
}

// createdBefore answers a request for an intercept whose name is taken.
func (t *tx) createdBefore(
	old *commandv1.InterceptRow, spec, resolved *manager.InterceptSpec,
) *commandv1.Result {
	if t.now()-old.GetCreatedAt() < sameRequestWindow &&
		(proto.Equal(old.GetSpec(), spec) || proto.Equal(old.GetSpec(), resolved)) {
		return withIntercept(old)
	}
	return hinted(refuse(commandv1.Code_CODE_ALREADY_EXISTS, ReasonInterceptExists,
		"Intercept named %q already exists", spec.GetName()),
		"remove it first or choose another name")
}

func (t *tx) hasAgents(namespace, workload string) bool {
	for range t.work.AgentsOf(namespace, workload) {
		return true
	}
	return false
}

// interceptLimits refuses an intercept too many of an identity or a namespace.
func (t *tx) interceptLimits(session *commandv1.SessionRow, spec *manager.InterceptSpec) *commandv1.Result {
	l := t.work.limits
	if session.GetIdentity() == "" {
		return nil
	}
	own := func(yield func(*commandv1.InterceptRow) bool) {
		for s := range t.work.SessionsOf(session.GetIdentity()) {
			for row := range t.work.InterceptsOf(s.GetId()) {
				if row.GetParent() == "" && !yield(row) {
					return
				}
			}
		}
	}
	rows := t.work.intercepts.rows.Len()
	return first(
		within(rows, own, l.GetInterceptsPerIdentity(), ReasonLimitIntercepts, "interceptsPerIdentity",
			"%s has %d intercepts, which is all it may", session.GetIdentity(), l.GetInterceptsPerIdentity()),
		within(rows, withoutChildren(t.work.intercepts.by(interceptsByWorkload, part(spec.GetNamespace()))), l.GetInterceptsPerNamespace(),
			ReasonLimitNamespaceIntercepts, "interceptsPerNamespace",
			"namespace %q has %d intercepts, which is all it may", spec.GetNamespace(), l.GetInterceptsPerNamespace()),
	)
}

// displace makes room for an intercept: what is in the way of it and has an
// absent owner ends, with force, or without when it is what the same owner left
// behind. It returns what to tell the caller about that.
func (t *tx) displace(
	session *commandv1.SessionRow, spec *manager.InterceptSpec, id string, force bool,
) (told string, res *commandv1.Result) {
	all := t.work.conflicts(spec, id, 0)
	for _, c := range all {
		if !c.Displaceable() || !force && !(t.since2() && c.leftBy(session, spec)) {
			return "", c.result()
		}
	}
	for _, c := range all {
		for _, row := range t.familyOf(c.With) {
			if !claims(row.GetDisposition()) {
				continue // it is not in the way, or was displaced with another of its family
			}
			row = edit(row)
			row.Disposition = manager.InterceptDispositionType_AGENT_ERROR
			row.Message = fmt.Sprintf("Displaced by intercept %q of client %q while its owner was away",
				id, spec.GetClient())
			clearAgent(row)
			t.touch(row)
			if row.GetParent() != "" {
				continue
			}
			if told != "" {
				told += "; "
			}
			told += fmt.Sprintf("displaced intercept %q of client %q, who is away",
				row.GetId(), row.GetSpec().GetClient())
		}
	}
	return told, nil
}

// removeIntercept has two forms: an owner names session and intercept, an
// operator the intercept's id.
func (t *tx) removeIntercept(op *commandv1.RemoveIntercept) *commandv1.Result {
	if op.GetId() != "" {
		return t.removeByID(op.GetId())
	}
	session, ok := t.work.sessions.get(op.GetSessionId())
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonSessionNotFound,
			"Client session %q not found", op.GetSessionId())
	}
	if !t.mayActFor(session.GetIdentity()) {
		return notYours(session.GetId())
	}
	row, ok := t.work.intercepts.get(interceptID(session.GetId(), op.GetName()))
	if !ok || row.GetParent() != "" {
		// To its owner a further port is no intercept.
		return done()
	}
	t.deleteIntercept(row)
	return withIntercept(row)
}

func (t *tx) removeByID(id string) *commandv1.Result {
	row, ok := t.work.intercepts.get(id)
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonInterceptNotFound,
			"intercept %q not found", id)
	}
	if role, _ := roleOf(t.cmd.GetIdentity()); role != roleOperator &&
		!t.mayActFor(row.GetIdentity()) {
		return notYours(row.GetSessionId())
	}
	t.deleteIntercept(row)
	return withIntercept(row)
}

// setIntercept applies the decision of the intercept's actor, unless the row
// has changed since the actor looked.
func (t *tx) setIntercept(op *commandv1.SetIntercept) *commandv1.Result {
	old, ok := t.work.intercepts.get(op.GetId())
	if !ok {
		return refuse(commandv1.Code_CODE_NOT_FOUND, ReasonInterceptNotFound,
			"intercept %q not found", op.GetId())
	}
	if old.GetModifyRevision() != op.GetSeenModifyRevision() {
		return refuse(commandv1.Code_CODE_ABORTED, ReasonConflict,
			"intercept %q was changed: modify revision is %d, not %d",
			op.GetId(), old.GetModifyRevision(), op.GetSeenModifyRevision())
	}
	if op.GetRemove() {
		t.deleteIntercept(old)
		return withIntercept(old)
	}
	row := edit(old)
	// Without a disposition only the rest is decided.
	if op.GetDisposition() != manager.InterceptDispositionType_UNSPECIFIED {
		row.Disposition, row.Message = op.GetDisposition(), op.GetMessage()
	}
	if claims(row.GetDisposition()) && !claims(old.GetDisposition()) {
		if c := t.work.conflictOf(row); c != nil {
			return c.result()
		}
	}
	switch state := op.GetOwnerState(); {
	case state == commandv1.OwnerState_OWNER_STATE_UNSPECIFIED:
	case state == commandv1.OwnerState_OWNER_STATE_REARMING && !claims(row.GetDisposition()):
		// There is nothing to arm.
		row.OwnerState = commandv1.OwnerState_OWNER_STATE_PRESENT
	default:
		row.OwnerState = state
	}
	if op.GetClearAgent() {
		clearAgent(row)
	}
	if proto.Equal(row, old) {
		return withIntercept(old)
	}
	t.touch(row)
	return withIntercept(row)
}
