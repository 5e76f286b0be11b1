package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// An intercept may ask for further ports of the pod (pod_ports). Agents know
// intercepts of one port only, so that each further port is an intercept of its
// own, a child: made and removed with its parent, reviewed by agents, and
// hidden from the owner. The names are those of the published manager.

// maxFamilyBytes bounds what the specs of one intercept's children take.
const maxFamilyBytes = 4 * maxSpecBytes

// family names an intercept together with its children: the parent's id.
func family(row *commandv1.InterceptRow) string { return cmp.Or(row.GetParent(), row.GetId()) }

// familyOf lists an intercept's family, the parent first.
func (t *tx) familyOf(row *commandv1.InterceptRow) []*commandv1.InterceptRow {
	parent, ok := t.work.intercepts.get(family(row))
	if !ok {
		return []*commandv1.InterceptRow{row}
	}
	return append([]*commandv1.InterceptRow{parent}, t.childrenOf(parent)...)
}

// childrenOf lists an intercept's children by their ids.
func (t *tx) childrenOf(row *commandv1.InterceptRow) []*commandv1.InterceptRow {
	if len(row.GetSpec().GetPodPorts()) == 0 {
		return nil
	}
	var out []*commandv1.InterceptRow
	for other := range t.work.InterceptsOf(row.GetSessionId()) {
		if other.GetParent() == row.GetId() {
			out = append(out, other)
		}
	}
	return out
}

func withoutChildren(rows iter.Seq[*commandv1.InterceptRow]) iter.Seq[*commandv1.InterceptRow] {
	return func(yield func(*commandv1.InterceptRow) bool) {
		for row := range rows {
			if row.GetParent() == "" && !yield(row) {
				return
			}
		}
	}
}

// furtherPorts returns the specs of the children that an intercept of session
// gets, or why it cannot have them.
func (t *tx) furtherPorts(
	session *commandv1.SessionRow, workload *commandv1.WorkloadRow, spec *manager.InterceptSpec,
) ([]*manager.InterceptSpec, *commandv1.Result) {
	if n := len(spec.GetPodPorts()); n*proto.Size(spec) > maxFamilyBytes {
		return nil, refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonTooLarge,
			"an intercept with %d further ports, each with the same filters, would take more than %d bytes", n, maxFamilyBytes)
	}
	out, err := childSpecs(workload, spec)
	if err != nil {
		return nil, hinted(refuse(commandv1.Code_CODE_INVALID_ARGUMENT, ReasonPortUnresolved, "%v", err),
			"name a port of the workload as it declares it, or by number; with /UDP if that is what it is")
	}
	for _, child := range out {
		if _, taken := t.work.intercepts.get(interceptID(session.GetId(), child.GetName())); taken {
			return nil, hinted(refuse(commandv1.Code_CODE_ALREADY_EXISTS, ReasonInterceptExists,
				"Intercept named %q already exists", child.GetName()), "it has the name of a further port of this one: choose another name")
		}
	}
	return out, nil
}

func (t *tx) putChildren(parent *commandv1.InterceptRow, specs []*manager.InterceptSpec) {
	for _, spec := range specs {
		row := edit(parent)
		row.Id, row.Parent, row.Spec = interceptID(parent.GetSessionId(), spec.GetName()), parent.GetId(), spec
		row.CreateRevision, row.ModifyRevision = 0, 0
		// It ends with its parent.
		row.LeaseUntil = 0
		t.touch(row)
	}
}

// AllPorts is the port identifier that asks, together with no_default_port, for
// every port that a workload declares.
const AllPorts = "all"

// ResolveSpec returns a copy of a spec with its ports as PrepareIntercept answers
// them: the container's port, and further ones as "<container port>:<port on the
// workstation>", with "/UDP" behind those that are not TCP. An error, usually a
// *PortError, says what to pass.
func ResolveSpec(workload *commandv1.WorkloadRow, spec *manager.InterceptSpec) (*manager.InterceptSpec, error) {
	if spec.GetNoDefaultPort() && spec.GetPortIdentifier() == AllPorts {
		var err error
		if spec, err = withAllPorts(workload, spec); err != nil {
			return nil, err
		}
	}
	if res := checkPodPorts(spec); res != nil {
		return nil, errors.New(res.GetMessage())
	}
	resolved, err := resolveSpec(workload, spec)
	if err != nil {
		return nil, err
	}
	children, err := childSpecs(workload, resolved)
	if err != nil {
		return nil, err
	}
	resolved = edit(resolved)
	resolved.PodPorts = nil
	for _, c := range children {
		text := fmt.Sprintf("%d:%d", c.GetContainerPort(), c.GetTargetPort())
		if c.GetProtocol() != protocolTCP {
			text += "/" + c.GetProtocol()
		}
		resolved.PodPorts = append(resolved.PodPorts, text)
	}
	return resolved, nil
}

// withAllPorts asks for the ports of a workload one by one; each is served by the
// same port of the workstation.
func withAllPorts(workload *commandv1.WorkloadRow, spec *manager.InterceptSpec) (*manager.InterceptSpec, error) {
	ports := portsOf(workload, spec.GetContainerName())
	if len(ports) == 0 {
		return nil, &PortError{Identifier: AllPorts, Workload: workloadKey(workload.GetNamespace(), workload.GetName())}
	}
	spec = edit(spec)
	spec.ContainerPort, spec.Protocol, spec.PodPorts = ports[0].port.GetPort(), protocolOf(ports[0].port), nil
	for _, p := range ports[1:] {
		spec.PodPorts = append(spec.PodPorts, fmt.Sprintf("%d:%[1]d/%s", p.port.GetPort(), protocolOf(p.port)))
	}
	return spec, nil
}

// childSpecs makes a spec for each pod port.
func childSpecs(workload *commandv1.WorkloadRow, spec *manager.InterceptSpec) ([]*manager.InterceptSpec, error) {
	var out []*manager.InterceptSpec
	// The same port by name and by number is found only here.
	taken := []portID{{number: spec.GetContainerPort(), protocol: cmp.Or(strings.ToUpper(spec.GetProtocol()), protocolTCP)}}
	for _, text := range spec.GetPodPorts() {
		p, err := parsePodPort(text)
		if err != nil {
			return nil, err
		}
		id := portID{number: p.source.number, protocol: p.source.protocol}
		if id.number == 0 {
			_, port, err := resolvePort(workload, spec.GetContainerName(), p.source.name+"/"+p.source.protocol)
			if err != nil {
				return nil, err
			}
			id.number = port.GetPort()
		}
		if slices.Contains(taken, id) {
			return nil, fmt.Errorf("multiple port definitions using container port %d", id.number)
		}
		taken = append(taken, id)
		out = append(out, childSpec(spec, text, id, cmp.Or(p.target, id.number)))
	}
	return out, nil
}

// childSpec is the spec of one further port, which traffic reaches on target of
// the workstation.
func childSpec(spec *manager.InterceptSpec, mapping string, port portID, target int32) *manager.InterceptSpec {
	child := edit(spec)
	number := strconv.Itoa(int(port.number))
	child.Name = spec.GetName() + "-" + number + "-" + strings.ToLower(port.protocol)
	child.Client = fmt.Sprintf("child %s %s %s", mapping, spec.GetName(), spec.GetClient())
	child.ContainerPort, child.Protocol, child.TargetPort = port.number, port.protocol, target
	child.PortIdentifier = number + "/" + port.protocol
	child.ServicePortName, child.ServicePort = "", 0
	child.PodPorts, child.LocalPorts, child.ExtraPorts = nil, nil, nil
	child.NoDefaultPort = false
	// One of the family replaces the container.
	child.Replace = false
	return child
}
