package fsm

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// FuzzResolveSpec resolves ports as clients ask for them. What is resolved stays
// so when it is asked for again, and the request is not touched.
func FuzzResolveSpec(f *testing.F) {
	f.Add("http", "admin:9001", "", false)
	f.Add("8080/TCP", "53/UDP", "9000:1", false)
	f.Add("all", "", "", true)
	f.Add("", "0", ":", true)
	workload := &commandv1.WorkloadRow{Namespace: "default", Name: "web", Pods: []*commandv1.Pod{{Containers: []*commandv1.Container{
		{Name: "app", Ports: []*commandv1.ContainerPort{{Name: "http", Port: 8080}, {Name: "dns", Port: 53, Protocol: "UDP"}}},
		{Name: "side", Ports: []*commandv1.ContainerPort{{Name: "admin", Port: 9000, Protocol: "TCP"}}},
	}}}}
	f.Fuzz(func(t *testing.T, port, one, two string, none bool) {
		spec := &manager.InterceptSpec{Name: "i", Agent: "web", Namespace: "default", PortIdentifier: port, NoDefaultPort: none}
		for _, p := range []string{one, two} {
			if p != "" {
				spec.PodPorts = append(spec.PodPorts, p)
			}
		}
		before := proto.CloneOf(spec)
		resolved, err := ResolveSpec(workload, spec)
		if !proto.Equal(spec, before) {
			t.Fatalf("the request became %v", spec)
		}
		if err != nil {
			return
		}
		again, err := ResolveSpec(workload, resolved)
		if err != nil || !proto.Equal(again, resolved) && port != AllPorts {
			t.Errorf("%v is resolved to %v and that to %v, %v", spec, resolved, again, err)
		}
		if res := checkPodPorts(resolved); res != nil {
			t.Errorf("%v is refused: %v", resolved, res)
		}
	})
}

// FuzzFilters compares filters of two intercepts. Which is asked first does not
// matter, and a filter overlaps with itself.
func FuzzFilters(f *testing.F) {
	f.Add("/api", ":path-prefix:/a")
	f.Add(":path-regex:^/x.*$", ":path-equal:/xy")
	f.Add(":path-regex:(", "")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := parseFilter(a), parseFilter(b)
		if anyOverlap([]filter{x}, []filter{y}) != anyOverlap([]filter{y}, []filter{x}) {
			t.Errorf("%q and %q: it depends on the order", a, b)
		}
		if !anyOverlap([]filter{x}, []filter{x}) {
			t.Errorf("%q does not overlap with itself", a)
		}
	})
}
