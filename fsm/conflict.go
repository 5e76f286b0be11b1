package fsm

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Conflict says which intercept stands in the way of another one.
type Conflict struct {
	// With is the row in the way; shared, not to be modified.
	With *commandv1.InterceptRow
	// Port is what both ask for, as "<number or name>/<protocol>".
	Port string
	// Why is one clause.
	Why string
}

// Displaceable tells whether the other owner is away, so that the intercept
// may be taken over by force.
func (c *Conflict) Displaceable() bool {
	return c.With.GetOwnerState() == commandv1.OwnerState_OWNER_STATE_AWAY
}

// leftBy tells whether what is in the way was left behind by somebody who comes
// back under another session: a client that was killed makes the intercept of
// the same name again. The same person's intercept of another name may be that
// of a second laptop, which is only asleep, and wants force. Clients without a
// certificate share one identity, which proves nothing.
func (c *Conflict) leftBy(session *commandv1.SessionRow, spec *manager.InterceptSpec) bool {
	return c.Displaceable() && c.With.GetSpec().GetName() == spec.GetName() &&
		session.GetIdentity() != "" && c.With.GetIdentity() == session.GetIdentity() &&
		!session.GetCompat() && !c.With.GetCompat()
}

// Message names the other intercept, the port, the other client and the
// reason, in one line.
func (c *Conflict) Message() string {
	return fmt.Sprintf("conflicts with intercept %q of client %q on port %s: %s",
		c.With.GetId(), c.With.GetSpec().GetClient(), c.Port, c.Why)
}

// Hint says what to do about it, in one line.
func (c *Conflict) Hint() string {
	if c.Displaceable() {
		return "its owner is away: repeat with force to displace it"
	}
	return "add a header or path filter that tells the two apart, or ask " +
		strconv.Quote(c.With.GetSpec().GetClient()) + " to remove it"
}

func (c *Conflict) result() *commandv1.Result {
	return hinted(refuse(commandv1.Code_CODE_FAILED_PRECONDITION, ReasonInterceptConflict,
		"%s", c.Message()), "%s", c.Hint())
}

// claims tells whether an intercept in this state keeps others from its
// traffic. No two rows that do conflict with each other.
func claims(d manager.InterceptDispositionType) bool {
	return d == manager.InterceptDispositionType_ACTIVE ||
		d == manager.InterceptDispositionType_WAITING ||
		d == manager.InterceptDispositionType_NO_AGENT
}

// CheckConflict is the dry run of CreateIntercept's conflict rules: it returns
// the first intercept, by id, that would keep sessionID from making one with
// this spec without force, or nil. An intercept of the same session and name
// does not count, because creating it would fail for its name already, nor one
// that sessionID's owner left behind and may displace.
func (r *Root) CheckConflict(spec *manager.InterceptSpec, sessionID string) *Conflict {
	workload, _ := r.Workload(spec.GetNamespace(), spec.GetAgent())
	if resolved, err := resolveSpec(workload, spec); err == nil {
		spec = resolved
	}
	session, _ := r.Session(sessionID)
	for _, c := range r.conflicts(spec, interceptID(sessionID, spec.GetName()), 0) {
		if !c.leftBy(session, spec) {
			return c
		}
	}
	return nil
}

// conflictOf returns the first claiming intercept that row conflicts with; its
// own family does not count.
func (r *Root) conflictOf(row *commandv1.InterceptRow) *Conflict {
	all := r.conflicts(row.GetSpec(), family(row), 1)
	if len(all) == 0 {
		return nil
	}
	return all[0]
}

// conflicts returns up to limit conflicts of a spec of a family, in the order of
// the ids; limit 0 means all.
func (r *Root) conflicts(spec *manager.InterceptSpec, self string, limit int) []*Conflict {
	if spec.GetWiretap() {
		return nil
	}
	workload, _ := r.Workload(spec.GetNamespace(), spec.GetAgent())
	asked := newClaim(workload, spec)
	var out []*Conflict
	for row := range r.InterceptsFor(spec.GetNamespace(), spec.GetAgent()) {
		if family(row) == self || !claims(row.GetDisposition()) || row.GetSpec().GetWiretap() {
			continue
		}
		if port, why := asked.against(newClaim(workload, row.GetSpec())); why != "" {
			out = append(out, &Conflict{With: row, Port: port, Why: why})
			if len(out) == limit {
				break
			}
		}
	}
	return out
}

// claim is what an intercept wants for itself.
type claim struct {
	spec  *manager.InterceptSpec
	ports []portID
	paths []filter
}

func newClaim(workload *commandv1.WorkloadRow, spec *manager.InterceptSpec) claim {
	return claim{spec: spec, ports: claimedPorts(workload, spec), paths: pathFilters(spec)}
}

// claimedPorts lists the container ports that a spec asks for. A port that
// cannot be resolved is known by its identifier; one without any could be
// whichever the workload has.
func claimedPorts(workload *commandv1.WorkloadRow, spec *manager.InterceptSpec) []portID {
	var out []portID
	protocol := cmp.Or(strings.ToUpper(spec.GetProtocol()), protocolTCP)
	switch id, err := parsePortID(spec.GetPortIdentifier()); {
	case spec.GetContainerPort() != 0:
		out = append(out, portID{number: spec.GetContainerPort(), protocol: protocol})
	case spec.GetNoDefaultPort() && spec.GetPortIdentifier() == "":
	case err != nil:
		out = append(out, portID{name: spec.GetPortIdentifier(), protocol: protocol})
	default:
		if resolved, err := resolveSpec(workload, spec); workload != nil && err == nil {
			id = portID{number: resolved.GetContainerPort(), protocol: resolved.GetProtocol()}
		}
		id.protocol = cmp.Or(strings.ToUpper(id.protocol), protocol)
		out = append(out, id)
	}
	for _, text := range spec.GetPodPorts() {
		p, err := parsePodPort(text)
		if err != nil {
			continue
		}
		id := p.source
		if id.number == 0 && workload != nil {
			if _, port, err := resolvePort(workload, spec.GetContainerName(),
				id.name+"/"+id.protocol); err == nil {
				id = portID{number: port.GetPort(), protocol: id.protocol}
			}
		}
		out = append(out, id)
	}
	return out
}

func (id portID) String() string {
	what := "any"
	switch {
	case id.number != 0:
		what = strconv.Itoa(int(id.number))
	case id.name != "":
		what = id.name
	}
	return what + "/" + id.protocol
}

// meets tells whether two port claims may be the same port.
func (id portID) meets(o portID) bool {
	if id.protocol != o.protocol {
		return false
	}
	any, oany := id.number == 0 && id.name == "", o.number == 0 && o.name == ""
	return any || oany || id.number == o.number && id.name == o.name
}

// against returns the port two claims meet on and why they exclude each other;
// why is empty if they do not.
func (c claim) against(o claim) (port, why string) {
	if c.sameContainer(o) {
		switch {
		case o.spec.GetReplace():
			return o.portText(), "it replaces the container"
		case c.spec.GetReplace():
			return o.portText(), "the container cannot be replaced while it is intercepted"
		}
	}
	for _, p := range c.ports {
		for _, q := range o.ports {
			if p.meets(q) {
				if why := c.filtersAgainst(o); why != "" {
					return cmp.Or(q, p).String(), why
				}
				// The filters are the same for all ports.
				return "", ""
			}
		}
	}
	return "", ""
}

// sameContainer tells whether both may concern the same container.
func (c claim) sameContainer(o claim) bool {
	a, b := c.spec.GetContainerName(), o.spec.GetContainerName()
	return a == "" || b == "" || a == b
}

func (c claim) portText() string {
	if len(c.ports) == 0 {
		return portID{protocol: protocolTCP}.String()
	}
	return c.ports[0].String()
}

// filtersAgainst applies the rules for two intercepts of the same port.
func (c claim) filtersAgainst(o claim) string {
	headers, oheaders := c.spec.GetHeaderFilters(), o.spec.GetHeaderFilters()
	switch {
	case len(oheaders) == 0 && len(o.paths) == 0:
		return "it takes all traffic of the port"
	case len(headers) == 0 && len(c.paths) == 0:
		return "it takes part of the traffic, and all of it was asked for"
	case len(headers) > 0 && len(oheaders) > 0:
		if headersOverlap(headers, oheaders) &&
			(len(c.paths) == 0 || len(o.paths) == 0 || anyOverlap(c.paths, o.paths)) {
			return "a request can match the header filters of both"
		}
	case len(headers) == 0 && len(oheaders) == 0:
		if anyOverlap(c.paths, o.paths) {
			return "a request can match the path filters of both"
		}
	}
	// One has headers and the other only paths: headers rank above paths.
	return ""
}
