package agent

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"trivet/node/workload"
	"trivet/proto/telepresence/manager"
)

// testPod has a container with ports 8080 and 9090 over TCP and 53 over UDP.
func testPod() *workload.Pod {
	return &workload.Pod{
		Namespace: "default", Workload: "echo", Kind: "Deployment", Name: "echo-0", UID: "uid-0",
		IP: netip.MustParseAddr("10.1.2.3"),
		Containers: []workload.Container{
			{Name: "app", Ports: []workload.Port{
				{Number: 8080, Protocol: workload.TCP}, {Number: 9090, Protocol: workload.TCP}, {Number: 53, Protocol: workload.UDP},
			}},
			{Name: "sidecar", Ports: []workload.Port{{Number: 7070, Protocol: workload.TCP}}},
		},
	}
}

func intercept(id string, d manager.InterceptDispositionType, change ...func(*manager.InterceptSpec)) *manager.InterceptInfo {
	i := &manager.InterceptInfo{
		Id: id, Disposition: d,
		Spec: &manager.InterceptSpec{
			Name: id, Agent: "echo", Namespace: "default", Mechanism: "tcp", Protocol: "TCP",
			TargetHost: "127.0.0.1", TargetPort: 3000, ContainerName: "app", ContainerPort: 8080,
		},
		ClientSession: &manager.SessionInfo{SessionId: "client-" + id},
	}
	for _, f := range change {
		f(i.Spec)
	}
	return i
}

const (
	waiting = manager.InterceptDispositionType_WAITING
	active  = manager.InterceptDispositionType_ACTIVE
)

// serving is the plan's ports as "intercept" or "intercept (waiting)".
func serving(p plan) map[uint16]string {
	out := map[uint16]string{}
	for port, s := range p.Ports {
		out[port] = s.Intercept
		if s.Waiting {
			out[port] += " (waiting)"
		}
	}
	return out
}

func TestDecideServesOneInterceptPerPort(t *testing.T) {
	t.Parallel()
	port := func(n int32) func(*manager.InterceptSpec) {
		return func(s *manager.InterceptSpec) { s.ContainerPort = n }
	}
	tests := map[string]struct {
		before   map[uint16]string
		list     []*manager.InterceptInfo
		want     map[uint16]string
		refusals []refusal
	}{
		"none": {},
		"one waiting": {
			list: []*manager.InterceptInfo{intercept("a", waiting)},
			want: map[uint16]string{8080: "a (waiting)"},
		},
		"no ports and no client are not reviewed": {
			list: []*manager.InterceptInfo{
				intercept("a", manager.InterceptDispositionType_NO_PORTS),
				intercept("b", manager.InterceptDispositionType_NO_CLIENT),
				intercept("c", manager.InterceptDispositionType_NO_AGENT),
				intercept("d", manager.InterceptDispositionType_REMOVED),
			},
		},
		"two waiting, first by id wins": {
			list:     []*manager.InterceptInfo{intercept("intercept-02", waiting), intercept("intercept-01", waiting)},
			want:     map[uint16]string{8080: "intercept-01 (waiting)"},
			refusals: []refusal{{"intercept-02", `Conflicts with the currently-waiting-to-be-served intercept "intercept-01"`}},
		},
		"waiting beside active": {
			list:     []*manager.InterceptInfo{intercept("intercept-01", active), intercept("intercept-00", waiting)},
			want:     map[uint16]string{8080: "intercept-01"},
			refusals: []refusal{{"intercept-00", `Conflicts with the currently-served intercept "intercept-01"`}},
		},
		"the one served stays": {
			before:   map[uint16]string{8080: "b"},
			list:     []*manager.InterceptInfo{intercept("a", waiting), intercept("b", waiting)},
			want:     map[uint16]string{8080: "b (waiting)"},
			refusals: []refusal{{"a", `Conflicts with the currently-waiting-to-be-served intercept "b"`}},
		},
		"the one served is gone": {
			before: map[uint16]string{8080: "b"},
			list:   []*manager.InterceptInfo{intercept("a", waiting)},
			want:   map[uint16]string{8080: "a (waiting)"},
		},
		"two ports": {
			list: []*manager.InterceptInfo{intercept("a", waiting), intercept("b", active, port(9090))},
			want: map[uint16]string{8080: "a (waiting)", 9090: "b"},
		},
		"an owner that is gone frees the port": {
			before: map[uint16]string{8080: "a"},
			list: []*manager.InterceptInfo{
				intercept("a", manager.InterceptDispositionType_NO_CLIENT), intercept("b", waiting),
			},
			want: map[uint16]string{8080: "b (waiting)"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := decide(testPod(), tt.before, tt.list)
			if d := cmp.Diff(tt.want, serving(p), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("served ports (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.refusals, p.Refusals, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("refusals (-want +got):\n%s", d)
			}
		})
	}
}

func TestDecideRefusesWhatThePodCannotServe(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change  func(*manager.InterceptSpec)
		message string
	}{
		"unknown container": {
			func(s *manager.InterceptSpec) { s.ContainerName = "nope" }, `No match for container "nope"`,
		},
		"unknown port": {
			func(s *manager.InterceptSpec) { s.ContainerPort = 1234 }, `container "app" of pod echo-0 has no port 1234/TCP`,
		},
		"port of another container": {
			func(s *manager.InterceptSpec) { s.ContainerPort = 7070 }, `container "app" of pod echo-0 has no port 7070/TCP`,
		},
		"no such port anywhere": {
			func(s *manager.InterceptSpec) { s.ContainerName, s.ContainerPort = "", 1234 },
			"no container of pod echo-0 has port 1234/TCP",
		},
		"udp port": {
			func(s *manager.InterceptSpec) { s.ContainerPort = 53 }, `container "app" of pod echo-0 has no port 53/TCP`,
		},
		"udp": {
			func(s *manager.InterceptSpec) { s.Protocol = "UDP" }, "this agent intercepts TCP only, not UDP",
		},
		"wiretap": {
			func(s *manager.InterceptSpec) { s.Wiretap = true }, "this agent does not copy traffic (wiretap)",
		},
		"headers": {
			func(s *manager.InterceptSpec) { s.HeaderFilters = map[string]string{"a": "b"} },
			"this agent takes all connections of a port or none: it has no header or path filters",
		},
		"paths": {
			func(s *manager.InterceptSpec) { s.PathFilters = []string{"/a"} },
			"this agent takes all connections of a port or none: it has no header or path filters",
		},
		"target is a name": {
			func(s *manager.InterceptSpec) { s.TargetHost = "laptop.local" }, `target host "laptop.local" is not an IP address`,
		},
		"no target": {
			func(s *manager.InterceptSpec) { s.TargetHost = "" }, `target host "" is not an IP address`,
		},
		"target port": {
			func(s *manager.InterceptSpec) { s.TargetPort = 70000 }, "target port 70000 is not between 1 and 65535",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := decide(testPod(), nil, []*manager.InterceptInfo{intercept("a", waiting, tt.change)})
			if len(p.Ports) > 0 {
				t.Errorf("it is served: %v", serving(p))
			}
			if d := cmp.Diff([]refusal{{"a", tt.message}}, p.Refusals); d != "" {
				t.Errorf("refusals (-want +got):\n%s", d)
			}
			// What another pod has approved is none of this agent's business.
			if p := decide(testPod(), nil, []*manager.InterceptInfo{intercept("a", active, tt.change)}); len(p.Refusals) > 0 {
				t.Errorf("an active intercept is refused: %v", p.Refusals)
			}
		})
	}
}

func TestDecideFindsTheTarget(t *testing.T) {
	t.Parallel()
	info := intercept("session:name", waiting, func(s *manager.InterceptSpec) {
		s.Name, s.ContainerName, s.TargetHost, s.Replace = "name", "", "::ffff:127.0.0.1", true
		s.ContainerPort, s.RoundtripLatency, s.DialTimeout = 7070, int64(2*time.Second), -1
	})
	info.ClientSession = nil
	p := decide(testPod(), nil, []*manager.InterceptInfo{info})
	want := target{
		Intercept: "session:name", Client: "session", Container: "sidecar",
		Addr: netip.MustParseAddrPort("127.0.0.1:3000"), Replace: true, Latency: 2 * time.Second,
	}
	if got := p.Ports[7070].target; got != want {
		t.Errorf("target\n got %+v\nwant %+v", got, want)
	}
}

func TestRoutesKeepWhatStays(t *testing.T) {
	t.Parallel()
	r := newRoutes()
	if _, known, _ := r.lookup(1); known {
		t.Error("routes are known before the manager has spoken")
	}
	a, b := target{Intercept: "a"}, target{Intercept: "b"}
	r.set(map[uint16]target{1: a, 2: b})
	one, known, changed := r.lookup(1)
	two, _, _ := r.lookup(2)
	if !known || one.Intercept != "a" || two.Intercept != "b" {
		t.Fatalf("routes are %v and %v, known %v", one, two, known)
	}
	r.set(map[uint16]target{1: a, 2: a})
	<-changed
	if again, _, _ := r.lookup(1); again != one || one.ctx.Err() != nil {
		t.Error("a route that stays was replaced")
	}
	if two.ctx.Err() == nil {
		t.Error("a route that was replaced did not end")
	}
	r.close()
	if to, known, _ := r.lookup(1); to != nil || !known || one.ctx.Err() == nil {
		t.Error("a closed table still has a route")
	}
	r.set(map[uint16]target{1: a})
	if to, _, _ := r.lookup(1); to != nil {
		t.Error("a closed table took a route")
	}
}
