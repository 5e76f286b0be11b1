package agent

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"trivet/node/workload"
	"trivet/proto/telepresence/manager"
)

// Texts of the contract.
const (
	noContainer     = "No match for container %q"
	conflictServed  = "Conflicts with the currently-served intercept %q"
	conflictWaiting = "Conflicts with the currently-waiting-to-be-served intercept %q"
	argsDescription = "all TCP connections"
)

// target is where the connections of one port go.
type target struct {
	// Intercept is the id, Client the session of its owner.
	Intercept, Client string
	// Container gives the environment.
	Container string
	// Addr is what the owner's end dials.
	Addr netip.AddrPort
	// Replace says that the app is not to see connections of this port.
	Replace bool
	// Latency and DialTimeout are the owner's expectations.
	Latency, DialTimeout time.Duration
}

// served is an intercept that this pod serves or is about to.
type served struct {
	target
	// Waiting: the manager waits for the review.
	Waiting bool
}

// refusal is a verdict on a waiting intercept that this pod does not serve.
type refusal struct {
	Intercept, Message string
}

// plan is what follows from a snapshot.
type plan struct {
	// Ports are to be armed, and nothing else.
	Ports map[uint16]served
	// Refusals are to be sent.
	Refusals []refusal
}

// verdict is why a pod does not serve an intercept, for its owner to read.
type verdict string

// Error returns the text.
func (v verdict) Error() string { return string(v) }

func refuse(format string, args ...any) verdict { return verdict(fmt.Sprintf(format, args...)) }

// decide chooses which intercepts the pod serves. before is what it serves by
// port, an intercept id each: that choice stays for as long as it can. Only
// waiting and active intercepts count; whatever else an intercept is, its
// connections belong to the app.
func decide(pod *workload.Pod, before map[uint16]string, snapshot []*manager.InterceptInfo) plan {
	p := plan{Ports: map[uint16]served{}}
	byPort := map[uint16][]served{}
	for _, info := range sortedByID(snapshot) {
		waiting := info.GetDisposition() == manager.InterceptDispositionType_WAITING
		if !waiting && info.GetDisposition() != manager.InterceptDispositionType_ACTIVE {
			continue
		}
		t, port, err := resolve(pod, info)
		switch {
		case err == nil:
			byPort[port] = append(byPort[port], served{target: t, Waiting: waiting})
		case waiting:
			p.Refusals = append(p.Refusals, refusal{info.GetId(), err.Error()})
		}
	}
	for port, candidates := range byPort {
		chosen := choose(candidates, before[port])
		p.Ports[port] = chosen
		text := conflictServed
		if chosen.Waiting {
			text = conflictWaiting
		}
		for _, c := range candidates {
			if c.Waiting && c.Intercept != chosen.Intercept {
				p.Refusals = append(p.Refusals, refusal{c.Intercept, fmt.Sprintf(text, chosen.Intercept)})
			}
		}
	}
	slices.SortFunc(p.Refusals, func(a, b refusal) int { return cmp.Compare(a.Intercept, b.Intercept) })
	return p
}

// choose returns the one served before, else the first active one, which some
// other pod approved, else the first one.
func choose(candidates []served, before string) served {
	for _, c := range candidates {
		if c.Intercept == before {
			return c
		}
	}
	for _, c := range candidates {
		if !c.Waiting {
			return c
		}
	}
	return candidates[0]
}

func sortedByID(list []*manager.InterceptInfo) []*manager.InterceptInfo {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b *manager.InterceptInfo) int { return cmp.Compare(a.GetId(), b.GetId()) })
	return list
}

// resolve finds what an intercept means in this pod. The error is a verdict.
func resolve(pod *workload.Pod, info *manager.InterceptInfo) (target, uint16, error) {
	spec := info.GetSpec()
	switch {
	case spec.GetWiretap():
		return target{}, 0, refuse("this agent does not copy traffic (wiretap)")
	case len(spec.GetHeaderFilters()) > 0 || len(spec.GetPathFilters()) > 0:
		return target{}, 0, refuse("this agent takes all connections of a port or none: it has no header or path filters")
	case spec.GetProtocol() != "" && !strings.EqualFold(spec.GetProtocol(), workload.TCP):
		return target{}, 0, refuse("this agent intercepts TCP only, not %s", spec.GetProtocol())
	}
	container, port, err := findPort(pod, spec)
	if err != nil {
		return target{}, 0, err
	}
	addr, err := targetAddr(spec)
	if err != nil {
		return target{}, 0, err
	}
	owner := info.GetClientSession().GetSessionId()
	if owner == "" {
		// The id is made of the owner's session and the name.
		owner = strings.TrimSuffix(info.GetId(), ":"+spec.GetName())
	}
	return target{
		Intercept: info.GetId(), Client: owner, Container: container, Addr: addr, Replace: spec.GetReplace(),
		Latency: time.Duration(max(spec.GetRoundtripLatency(), 0)), DialTimeout: time.Duration(max(spec.GetDialTimeout(), 0)),
	}, port, nil
}

// findPort returns the container and the port that the spec means.
func findPort(pod *workload.Pod, spec *manager.InterceptSpec) (string, uint16, error) {
	port, name := spec.GetContainerPort(), spec.GetContainerName()
	known := false
	for _, c := range pod.Containers {
		if name != "" && c.Name != name {
			continue
		}
		known = true
		for _, p := range c.Ports {
			if int32(p.Number) == port && p.Protocol == workload.TCP {
				return c.Name, p.Number, nil
			}
		}
	}
	switch {
	case !known:
		return "", 0, refuse(noContainer, name)
	case name == "":
		return "", 0, refuse("no container of pod %s has port %d/TCP", pod.Name, port)
	}
	return "", 0, refuse("container %q of pod %s has no port %d/TCP", name, pod.Name, port)
}

// targetAddr returns the address that the owner's end is to dial.
func targetAddr(spec *manager.InterceptSpec) (netip.AddrPort, error) {
	host := spec.GetTargetHost()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, refuse("target host %q is not an IP address", spec.GetTargetHost())
	}
	port := spec.GetTargetPort()
	if port < 1 || port > 65535 {
		return netip.AddrPort{}, refuse("target port %d is not between 1 and 65535", port)
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(port)), nil
}
