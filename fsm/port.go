package fsm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Protocols of a port.
const (
	protocolTCP = "TCP"
	protocolUDP = "UDP"
)

// PortError says why a port identifier does not name exactly one port of a
// workload, and what would.
type PortError struct {
	Identifier string
	// Workload is "<namespace>/<name>".
	Workload string
	// Matches are the ports that the identifier names, Ports all of them, as
	// identifiers that can be passed.
	Matches, Ports []string
}

// Error names the identifiers that would work.
func (e *PortError) Error() string {
	switch {
	case len(e.Ports) == 0:
		return fmt.Sprintf("workload %s declares no port: pass a number", e.Workload)
	case e.Identifier == "":
		return fmt.Sprintf("workload %s has several ports: pass one of %s",
			e.Workload, strings.Join(e.Ports, ", "))
	case len(e.Matches) == 0:
		return fmt.Sprintf("workload %s has no port %q: pass one of %s",
			e.Workload, e.Identifier, strings.Join(e.Ports, ", "))
	}
	return fmt.Sprintf("port %q of workload %s is ambiguous: pass one of %s",
		e.Identifier, e.Workload, strings.Join(e.Matches, ", "))
}

// ResolvePort finds the port that an identifier names: a name or a number,
// optionally followed by /TCP or /UDP. Exactly one port of the workload must
// match; the empty identifier matches all of them. A workload that declares no
// port at all, as bare processes may, is taken at the caller's word for a
// number. It returns the name of the container and the port, or an error,
// usually a *PortError, that says what to pass. The port is shared with the
// row.
func ResolvePort(
	workload *commandv1.WorkloadRow, identifier string,
) (container string, port *commandv1.ContainerPort, err error) {
	return resolvePort(workload, "", identifier)
}

type portOf struct {
	container string
	port      *commandv1.ContainerPort
}

func (p portOf) identifier() string {
	return cmp.Or(p.port.GetName(), strconv.Itoa(int(p.port.GetPort()))) + "/" + protocolOf(p.port)
}

func protocolOf(p *commandv1.ContainerPort) string {
	return cmp.Or(strings.ToUpper(p.GetProtocol()), protocolTCP)
}

// portsOf lists the different ports of a workload's pods, of one container or
// of all.
func portsOf(workload *commandv1.WorkloadRow, container string) []portOf {
	var out []portOf
	for _, pod := range workload.GetPods() {
		for _, c := range pod.GetContainers() {
			if container != "" && c.GetName() != container {
				continue
			}
			for _, p := range c.GetPorts() {
				out = append(out, portOf{c.GetName(), p})
			}
		}
	}
	compare := func(a, b portOf) int {
		return cmp.Or(cmp.Compare(a.container, b.container),
			cmp.Compare(a.port.GetPort(), b.port.GetPort()),
			cmp.Compare(protocolOf(a.port), protocolOf(b.port)),
			cmp.Compare(a.port.GetName(), b.port.GetName()))
	}
	slices.SortStableFunc(out, compare)
	return slices.CompactFunc(out, func(a, b portOf) bool { return compare(a, b) == 0 })
}

func resolvePort(
	workload *commandv1.WorkloadRow, container, identifier string,
) (string, *commandv1.ContainerPort, error) {
	if workload == nil {
		return "", nil, errors.New("the workload is not known")
	}
	id, err := parsePortID(identifier)
	if err != nil {
		return "", nil, err
	}
	fail := &PortError{
		Identifier: identifier,
		Workload:   workloadKey(workload.GetNamespace(), workload.GetName()),
	}
	var found []portOf
	for _, p := range portsOf(workload, container) {
		fail.Ports = append(fail.Ports, p.identifier())
		if id.names(p.port) {
			found = append(found, p)
			fail.Matches = append(fail.Matches, p.identifier())
		}
	}
	switch {
	case len(found) == 1:
	case id.number != 0 && len(portsOf(workload, "")) == 0:
		return container, &commandv1.ContainerPort{
			Port: id.number, Protocol: cmp.Or(id.protocol, protocolTCP),
		}, nil
	default:
		return "", nil, fail
	}
	return found[0].container, found[0].port, nil
}

// portID is a parsed port identifier. All parts may be empty.
type portID struct {
	name     string
	number   int32
	protocol string
}

func parsePortID(s string) (portID, error) {
	var id portID
	text, protocol, ok := strings.Cut(s, "/")
	if ok {
		id.protocol = strings.ToUpper(protocol)
		if id.protocol != protocolTCP && id.protocol != protocolUDP {
			return id, fmt.Errorf("port %q: protocol must be TCP or UDP", s)
		}
		if text == "" {
			return id, fmt.Errorf("port %q has neither name nor number", s)
		}
	}
	if !isNumeric(text) {
		id.name = text
		return id, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return id, fmt.Errorf("port %q is not between 1 and 65535", s)
	}
	id.number = int32(n)
	return id, nil
}

func (id portID) names(p *commandv1.ContainerPort) bool {
	return (id.protocol == "" || id.protocol == protocolOf(p)) &&
		(id.number == 0 || id.number == p.GetPort()) &&
		(id.name == "" || id.name == p.GetName())
}

// podPort is one entry of InterceptSpec.pod_ports, PORT[:number][/protocol].
type podPort struct {
	source portID
	target int32 // 0 when the source is a name and no target was given
}

func parsePodPort(s string) (podPort, error) {
	text, protocol, hasProtocol := strings.Cut(s, "/")
	source, target, hasTarget := strings.Cut(text, ":")
	if hasProtocol {
		source += "/" + protocol
	}
	id, err := parsePortID(source)
	switch {
	case err != nil:
		return podPort{}, fmt.Errorf("pod %w", err)
	case id == portID{}:
		return podPort{}, fmt.Errorf("pod port %q has neither name nor number", s)
	}
	id.protocol = cmp.Or(id.protocol, protocolTCP)
	p := podPort{source: id, target: id.number}
	if hasTarget {
		n, err := strconv.ParseUint(target, 10, 16)
		if err != nil || n == 0 {
			return podPort{}, fmt.Errorf("pod port %q: target is not between 1 and 65535", s)
		}
		p.target = int32(n)
	}
	return p, nil
}

// checkPodPorts refuses what the contract calls multiple definitions.
func checkPodPorts(spec *manager.InterceptSpec) *commandv1.Result {
	sources, targets := map[portID]bool{}, map[portID]bool{}
	for _, text := range spec.GetPodPorts() {
		p, err := parsePodPort(text)
		if err != nil {
			return invalid("%v", err)
		}
		target := portID{number: p.target, protocol: p.source.protocol}
		switch {
		case p.target != 0 && targets[target]:
			return invalid("multiple port definitions targeting %d", p.target)
		case sources[p.source]:
			return invalid("multiple port definitions using container port %s",
				cmp.Or(p.source.name, strconv.Itoa(int(p.source.number))))
		}
		sources[p.source], targets[target] = true, true
	}
	return nil
}

// resolveSpec returns the spec with the parts of the port that the workload
// tells and the request leaves open. It never changes the given spec. Without
// a workload it is returned as it is.
func resolveSpec(
	workload *commandv1.WorkloadRow, spec *manager.InterceptSpec,
) (*manager.InterceptSpec, error) {
	if workload == nil || spec.GetNoDefaultPort() && spec.GetPortIdentifier() == "" &&
		spec.GetContainerPort() == 0 {
		return spec, nil
	}
	if number := spec.GetContainerPort(); number != 0 {
		for _, p := range portsOf(workload, spec.GetContainerName()) {
			if p.port.GetPort() == number && (spec.GetProtocol() == "" ||
				strings.EqualFold(spec.GetProtocol(), protocolOf(p.port))) {
				return withPort(spec, p), nil
			}
		}
		return spec, nil
	}
	identifier := spec.GetPortIdentifier()
	if identifier != "" && spec.GetProtocol() != "" && !strings.Contains(identifier, "/") {
		identifier += "/" + spec.GetProtocol()
	}
	container, port, err := resolvePort(workload, spec.GetContainerName(), identifier)
	if err != nil {
		return nil, err
	}
	return withPort(spec, portOf{container, port}), nil
}

func withPort(spec *manager.InterceptSpec, p portOf) *manager.InterceptSpec {
	spec = edit(spec)
	spec.ContainerPort = p.port.GetPort()
	spec.ContainerName = cmp.Or(spec.GetContainerName(), p.container)
	spec.ServicePortName = cmp.Or(spec.GetServicePortName(), p.port.GetName())
	spec.Protocol = cmp.Or(spec.GetProtocol(), protocolOf(p.port))
	return spec
}
