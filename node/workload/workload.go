package workload

import (
	"net/netip"

	commandv1 "trivet/proto/trivet/command/v1"
)

// TCP and UDP are the protocols of a port, as the manager writes them.
const (
	TCP = "TCP"
	UDP = "UDP"
)

// Workload is a program that runs here, in one or more pods.
type Workload struct {
	Namespace, Name, Kind string
	Pods                  []*Pod
}

// Pod is one running copy of a workload.
type Pod struct {
	// Namespace and Workload name the workload that the pod belongs to, Kind
	// is the workload's.
	Namespace, Workload, Kind string
	// Name is unique within the namespace, UID on the node.
	Name, UID string
	// IP is the address at which others reach the pod.
	IP netip.Addr
	// Net is the pod's network namespace.
	Net        Net
	Containers []Container
}

// Net says where a pod's sockets live. The zero value says that this is not
// known: such a pod can only be served by a listener in front of it.
type Net struct {
	// Path is a file that names the network namespace.
	Path string `json:"path,omitempty"`
	// Host stands for the namespace of the node itself.
	Host bool `json:"host,omitempty"`
}

// Known tells whether n names a namespace.
func (n Net) Known() bool { return n.Host || n.Path != "" }

// String returns what a person would call the namespace.
func (n Net) String() string {
	switch {
	case n.Host:
		return "the host's"
	case n.Path == "":
		return "unknown"
	}
	return n.Path
}

// Container is one program of a pod. Its environment is read by Environment
// when it is needed, so that secrets are not kept.
type Container struct {
	Name  string
	Ports []Port

	env map[string]string
	pid int
}

// Port is a port that a container serves.
type Port struct {
	Name     string
	Number   uint16
	Protocol string
	// Listen and App are set for a port that can be served without stealing:
	// visitors connect to Listen, the app itself is at App.
	Listen, App netip.AddrPort
}

// Set is everything that runs here at one moment.
type Set struct {
	// Workloads are sorted by namespace and name, pods by name.
	Workloads []*Workload

	pods map[string]*Pod
}

func newSet(workloads []*Workload) *Set {
	s := &Set{Workloads: workloads, pods: map[string]*Pod{}}
	for _, w := range workloads {
		for _, p := range w.Pods {
			s.pods[p.UID] = p
		}
	}
	return s
}

// Pod returns the pod with that UID if it belongs to that workload, else nil.
func (s *Set) Pod(namespace, name, uid string) *Pod {
	p := s.pods[uid]
	if p == nil || p.Namespace != namespace || p.Workload != name {
		return nil
	}
	return p
}

// Report returns the set as the manager wants to hear it. Environments stay
// here: only the owner of an intercept may see one, and gets it from the
// agent.
func (s *Set) Report() []*commandv1.WorkloadReport {
	out := make([]*commandv1.WorkloadReport, 0, len(s.Workloads))
	for _, w := range s.Workloads {
		r := &commandv1.WorkloadReport{Namespace: w.Namespace, Name: w.Name, Kind: w.Kind}
		for _, p := range w.Pods {
			r.Pods = append(r.Pods, p.report())
		}
		out = append(out, r)
	}
	return out
}

func (p *Pod) report() *commandv1.Pod {
	r := &commandv1.Pod{Name: p.Name, Uid: p.UID, Ip: p.IP.String()}
	for _, c := range p.Containers {
		rc := &commandv1.Container{Name: c.Name}
		for _, port := range c.Ports {
			rc.Ports = append(rc.Ports, &commandv1.ContainerPort{
				Name: port.Name, Port: int32(port.Number), Protocol: port.Protocol,
			})
		}
		r.Containers = append(r.Containers, rc)
	}
	return r
}
