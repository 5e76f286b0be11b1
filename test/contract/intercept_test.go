package contract

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/proto/telepresence/manager"
)

// scene is an agent and a client that is there.
type scene struct {
	*site
	info        *manager.AgentInfo
	agent, sess *manager.SessionInfo
}

func (s *site) scene(info *manager.AgentInfo) *scene {
	s.Helper()
	sc := &scene{site: s, info: info, agent: s.arriveAgent(info), sess: s.arrive()}
	s.present(s.client, sc.sess)
	return sc
}

// own is the client's watch, past its first message.
func (s *scene) own() func(want string) *manager.InterceptInfo {
	s.Helper()
	watch, err := s.client.WatchIntercepts(s.ctx, s.sess)
	s.must(err)
	return func(want string) *manager.InterceptInfo {
		s.Helper()
		m := until(s.site, watch, want, shows(want))
		if len(m.GetIntercepts()) == 0 {
			return nil
		}
		return m.GetIntercepts()[0]
	}
}

// onScene runs a case with an agent of each generation.
func onScene(run func(*scene)) func(*site) {
	return both(func(s *site, agent func(string, int) *manager.AgentInfo) { run(s.scene(agent("", 0))) })
}

var dispositionCases = []assertion{
	{"created with an agent: WAITING for its approval", onScene(func(s *scene) {
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		if made.GetDisposition() != manager.InterceptDispositionType_WAITING || made.GetMessage() != "Waiting for Agent approval" ||
			made.GetId() != s.sess.GetSessionId()+":one" || made.GetClientSession().GetSessionId() != s.sess.GetSessionId() || !made.GetModifiedAt().IsValid() {
			s.Errorf("created %v", made)
		}
	})},
	{"created with agents that differ: NO_AGENT, answered with OK", func(s *site) {
		a, b := s.newerAgent("web", 0), s.newerAgent("web", 1)
		b.Version = "2.30.1"
		s.arriveAgent(a)
		s.arriveAgent(b)
		made := s.create(s.arrive(), s.spec("one", "web"))
		if made.GetDisposition() != manager.InterceptDispositionType_NO_AGENT || made.GetMessage() != `Agents for "web" are not consistent` {
			s.Errorf("%s: %q", made.GetDisposition(), made.GetMessage())
		}
	}},
	{"agents whose mechanisms differ only in their order are consistent", func(s *site) {
		a, b := s.newerAgent("web", 0), s.newerAgent("web", 1)
		http := &manager.AgentInfo_Mechanism{Name: "http", Product: "telepresence", Version: "1"}
		a.Mechanisms, b.Mechanisms = append(a.Mechanisms, http), append([]*manager.AgentInfo_Mechanism{http}, b.Mechanisms...)
		s.arriveAgent(a)
		s.arriveAgent(b)
		if made := s.create(s.arrive(), s.spec("one", "web")); made.GetDisposition() != manager.InterceptDispositionType_WAITING {
			s.Errorf("%s: %q", made.GetDisposition(), made.GetMessage())
		}
	}},
	{"created for a mechanism that no agent has: NO_MECHANISM, answered with OK", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.Mechanism = "grpc"
		made := s.create(s.sess, spec)
		if made.GetDisposition() != manager.InterceptDispositionType_NO_MECHANISM ||
			made.GetMessage() != `Agents for "`+s.info.GetName()+`" do not have mechanism "grpc"` {
			s.Errorf("%s: %q", made.GetDisposition(), made.GetMessage())
		}
	})},
	{"an approval makes it ACTIVE with what the agent said", onScene(func(s *scene) {
		see := s.own()
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: s.agent, Id: made.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE, Message: "here", PodIp: "10.9.9.9",
			SftpPort: 2222, FtpPort: 2121, MountPoint: "/tel_app_mounts/app", MechanismArgsDesc: "all TCP connections",
			Headers: map[string]string{"a": "b"}, Metadata: map[string]string{"c": "d"}, Environment: map[string]string{"E": "f"},
			Mounts: map[string]int32{"/data": 2},
		})
		s.must(err)
		got := see("one=ACTIVE")
		want := &manager.InterceptInfo{
			Id: made.GetId(), Spec: made.GetSpec(), Disposition: manager.InterceptDispositionType_ACTIVE, ClientSession: made.GetClientSession(),
			Message: "here", PodIp: "10.9.9.9", SftpPort: 2222, FtpPort: 2121, MountPoint: "/tel_app_mounts/app",
			MechanismArgsDesc: "all TCP connections", Headers: map[string]string{"a": "b"}, Metadata: map[string]string{"c": "d"},
			Environment: map[string]string{"E": "f"}, Mounts: map[string]int32{"/data": 2}, PodName: s.info.GetPodName(), ApiPort: s.info.GetApiPort(),
			ModifiedAt: got.GetModifiedAt(),
		}
		same(s.site, want, got)
	})},
	{"an agent may refuse", onScene(func(s *scene) {
		see := s.own()
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: s.agent, Id: made.GetId(), Disposition: manager.InterceptDispositionType_AGENT_ERROR, Message: "no such container",
		})
		s.must(err)
		if got := see("one=AGENT_ERROR"); got.GetMessage() != "no such container" {
			s.Errorf("message %q", got.GetMessage())
		}
	})},
	{"the first review wins, later ones are OK", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		second := s.arriveAgent(s.newerAgent("web", 1))
		see := sc.own()
		made := s.create(sc.sess, s.spec("one", "web"))
		s.approve(sc.agent, made.GetId(), podIP("web", 0))
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: second, Id: made.GetId(), Disposition: manager.InterceptDispositionType_AGENT_ERROR, Message: "too late",
		})
		s.must(err)
		if got := see("one=ACTIVE"); got.GetPodName() != podName("web", 0) {
			s.Errorf("served by %s", got.GetPodName())
		}
		if got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()}); err != nil ||
			got.GetDisposition() != manager.InterceptDispositionType_ACTIVE || got.GetMessage() != "" {
			s.Errorf("%v, %v", got, err)
		}
	}},
	{"an agent that disagrees makes it NO_AGENT, its leaving WAITING again", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		see := sc.own()
		made := s.create(sc.sess, s.spec("one", "web"))
		s.approve(sc.agent, made.GetId(), podIP("web", 0))
		see("one=ACTIVE")
		odd := s.newerAgent("web", 1)
		odd.Product = "other"
		oddSession := s.arriveAgent(odd)
		if got := see("one=NO_AGENT"); got.GetMessage() != `Agents for "web" are not consistent` {
			s.Errorf("message %q", got.GetMessage())
		}
		_, err := s.node.Depart(s.ctx, oddSession)
		s.must(err)
		if got := see("one=WAITING"); got.GetMessage() != "" {
			s.Errorf("message %q", got.GetMessage())
		}
	}},
	{"the last agent's leaving makes it NO_AGENT, an arrival WAITING without a message", onScene(func(s *scene) {
		see := s.own()
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		s.approve(s.agent, made.GetId(), s.info.GetPodIp())
		see("one=ACTIVE")
		_, err := s.node.Depart(s.ctx, s.agent)
		s.must(err)
		if got := see("one=NO_AGENT"); got.GetPodIp() != "" || got.GetPodName() != "" {
			s.Errorf("it still names pod %s at %s", got.GetPodName(), got.GetPodIp())
		}
		s.arriveAgent(s.info)
		if got := see("one=WAITING"); got.GetMessage() != "" {
			s.Errorf("message %q", got.GetMessage())
		}
	})},
	{"the serving agent's leaving makes it WAITING when others remain", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		other := s.arriveAgent(s.newerAgent("web", 1))
		see := sc.own()
		made := s.create(sc.sess, s.spec("one", "web"))
		s.approve(sc.agent, made.GetId(), podIP("web", 0))
		see("one=ACTIVE")
		_, err := s.node.Depart(s.ctx, sc.agent)
		s.must(err)
		if got := see("one=WAITING"); got.GetPodIp() != "" || got.GetPodName() != "" {
			s.Errorf("it still names pod %s at %s", got.GetPodName(), got.GetPodIp())
		}
		s.approve(other, made.GetId(), podIP("web", 1))
		if got := see("one=ACTIVE"); got.GetPodName() != podName("web", 1) {
			s.Errorf("served by %s", got.GetPodName())
		}
	}},
	{"another agent's leaving changes nothing", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		other := s.arriveAgent(s.newerAgent("web", 1))
		made := s.create(sc.sess, s.spec("one", "web"))
		s.approve(sc.agent, made.GetId(), podIP("web", 0))
		_, err := s.node.Depart(s.ctx, other)
		s.must(err)
		got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.must(err)
		if got.GetDisposition() != manager.InterceptDispositionType_ACTIVE || got.GetPodName() != podName("web", 0) {
			s.Errorf("%s at %s", got.GetDisposition(), got.GetPodName())
		}
	}},
	{"AGENT_ERROR and NO_MECHANISM do not recover with an arrival", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		failed := s.create(sc.sess, s.spec("failed", "web"))
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: sc.agent, Id: failed.GetId(), Disposition: manager.InterceptDispositionType_AGENT_ERROR,
		})
		s.must(err)
		spec := s.spec("lacking", "web")
		spec.Mechanism = "http"
		s.create(sc.sess, spec)
		s.arriveAgent(s.newerAgent("web", 1))
		for name, want := range map[string]manager.InterceptDispositionType{
			"failed": manager.InterceptDispositionType_AGENT_ERROR, "lacking": manager.InterceptDispositionType_NO_MECHANISM,
		} {
			got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Session: sc.sess, Name: name})
			s.must(err)
			if got.GetDisposition() != want {
				s.Errorf("%s is %s", name, got.GetDisposition())
			}
		}
	}},
	{"an accepted review stamps the time of the change", onScene(func(s *scene) {
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		s.approve(s.agent, made.GetId(), s.info.GetPodIp())
		got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.must(err)
		if !got.GetModifiedAt().AsTime().After(made.GetModifiedAt().AsTime()) {
			s.Errorf("%s after %s", got.GetModifiedAt().AsTime(), made.GetModifiedAt().AsTime())
		}
	})},
}

// createRefused is a spec that cannot be, and why.
func createRefused(text string, spoil func(*manager.InterceptSpec)) func(*site) {
	return func(s *site) {
		s.arriveAgent(s.newerAgent("web", 0))
		spec := s.spec("one", "web")
		spoil(spec)
		_, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: s.arrive(), InterceptSpec: spec})
		s.wants(err, codes.InvalidArgument, "%s", text)
	}
}

var createCases = []assertion{
	{"needs a client", createRefused("client must not be empty", func(i *manager.InterceptSpec) { i.Client, i.Agent, i.Mechanism = "", "", "" })},
	{"needs an agent", createRefused("agent must not be empty", func(i *manager.InterceptSpec) { i.Agent, i.Mechanism = "", "" })},
	{"needs a mechanism", createRefused("mechanism must not be empty", func(i *manager.InterceptSpec) { i.Mechanism = "" })},
	{"needs a namespace when the client has none", func(s *site) {
		info := s.clientInfo("alice")
		info.Namespace = ""
		sess, err := s.client.ArriveAsClient(s.ctx, info)
		s.must(err)
		spec := s.spec("one", "web")
		spec.Namespace, spec.Mechanism = "", ""
		_, err = s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec})
		s.wants(err, codes.InvalidArgument, "namespace must not be empty")
	}},
	{"the namespace defaults to the client's", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.Namespace = ""
		if made := s.create(s.sess, spec); made.GetSpec().GetNamespace() != s.ns {
			s.Errorf("made in %q", made.GetSpec().GetNamespace())
		}
	})},
	{"an unknown session comes before all else", func(s *site) {
		for _, id := range []string{"none", "agent:none"} {
			_, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: nobody(id), InterceptSpec: new(manager.InterceptSpec)})
			s.wants(err, codes.NotFound, "session %q not found", id)
		}
	}},
	{"an agent's session is no client's", func(s *site) {
		agent := s.arriveAgent(s.newerAgent("web", 0))
		_, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: agent, InterceptSpec: s.spec("one", "web")})
		s.wants(err, codes.NotFound, "session %q not found", agent.GetSessionId())
	}},
	{"a name that is taken", onScene(func(s *scene) {
		s.create(s.sess, s.spec("one", s.info.GetName()))
		again := s.spec("one", s.info.GetName())
		again.TargetPort++
		got, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: s.sess, InterceptSpec: again})
		s.wants(err, codes.AlreadyExists, `Intercept named "one" already exists`)
		if got != nil {
			s.Errorf("with %v", got)
		}
	})},
	{"a name that another client has is free", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		s.create(sc.sess, s.spec("one", "web"))
		bob := s.as(s.user("bob"))
		spec := s.spec("one", "web")
		spec.Client, spec.PortIdentifier = s.user("bob"), "admin"
		_, err := bob.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: s.arriveAs(bob, s.user("bob")), InterceptSpec: spec})
		s.must(err)
	}},
	{"a workload that nobody knows", func(s *site) {
		_, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: s.arrive(), InterceptSpec: s.spec("one", "none")})
		s.wantsCode(err, codes.NotFound)
	}},
	{"the spec comes back as it was asked for", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.ServiceName, spec.ServiceUid, spec.WorkloadKind = "svc", "uid", kind
		spec.LocalPorts, spec.HeaderFilters, spec.PathFilters = []string{"7000/TCP"}, map[string]string{"x-user": "alice"}, []string{":path-prefix:/api/"}
		spec.Metadata, spec.Plaintext, spec.MechanismArgs = map[string]string{"a": "b"}, true, []string{"--x"}
		made := s.create(s.sess, proto.CloneOf(spec))
		want := proto.CloneOf(spec)
		// What the manager finds out about the port is filled in.
		want.ServicePortName, want.ContainerPort, want.ContainerName, want.Protocol =
			made.GetSpec().GetServicePortName(), made.GetSpec().GetContainerPort(), made.GetSpec().GetContainerName(), made.GetSpec().GetProtocol()
		want.ServicePort = made.GetSpec().GetServicePort()
		same(s.site, want, made.GetSpec())
	})},
	{"a pod port is a child for agents, hidden from its owner, gone with its parent", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		see := sc.own()
		agents, err := s.node.WatchIntercepts(s.ctx, sc.agent)
		s.must(err)
		spec := s.spec("one", "web")
		spec.PodPorts = []string{"8081:7001"}
		s.create(sc.sess, spec)
		see("one=WAITING")
		m := until(s, agents, "agents see both", func(m *manager.InterceptInfoSnapshot) bool { return len(m.GetIntercepts()) == 2 })
		child := m.GetIntercepts()[1].GetSpec()
		if child.GetName() != "one-8081-tcp" && child.GetName() != "one-7001-tcp" {
			s.Errorf("the child is called %q", child.GetName())
		}
		if !strings.HasPrefix(child.GetClient(), "child ") {
			s.Errorf("the child's client is %q", child.GetClient())
		}
		_, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: sc.sess, Name: "one"})
		s.must(err)
		until(s, agents, "both are gone", shows(""))
	}},
}

var interceptCases = []assertion{
	{"RemoveIntercept of an unknown session", func(s *site) {
		_, err := s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: nobody("none"), Name: "one"})
		s.wants(err, codes.NotFound, `Client session "none" not found`)
	}},
	{"RemoveIntercept of an unknown name is OK", func(s *site) {
		_, err := s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: s.arrive(), Name: "none"})
		s.must(err)
	}},
	{"RemoveIntercept twice is OK", onScene(func(s *scene) {
		s.create(s.sess, s.spec("one", s.info.GetName()))
		for range 2 {
			_, err := s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: s.sess, Name: "one"})
			s.must(err)
		}
	})},
	{"a removed name can be taken again", onScene(func(s *scene) {
		a := s.create(s.sess, s.spec("one", s.info.GetName()))
		_, err := s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: s.sess, Name: "one"})
		s.must(err)
		if b := s.create(s.sess, s.spec("one", s.info.GetName())); b.GetId() != a.GetId() || b.GetDisposition() != manager.InterceptDispositionType_WAITING {
			s.Errorf("%v after %v", b, a)
		}
	})},
	{"GetIntercept by session and name, and by id alone", onScene(func(s *scene) {
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		for _, req := range []*manager.GetInterceptRequest{
			{Session: s.sess, Name: "one"}, {Name: made.GetId()}, {Session: nobody(""), Name: made.GetId()},
		} {
			got, err := s.client.GetIntercept(s.ctx, req)
			s.must(err)
			same(s.site, made, got)
		}
	})},
	{"GetIntercept of an unknown session", func(s *site) {
		_, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Session: nobody("none"), Name: "one"})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"GetIntercept of an unknown name", func(s *site) {
		_, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Session: s.arrive(), Name: "none"})
		s.wants(err, codes.NotFound, `Intercept named "none" not found`)
		_, err = s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: "nobody:none"})
		s.wants(err, codes.NotFound, `Intercept named "nobody:none" not found`)
	}},
	{"ReviewIntercept by an unknown agent is OK and ignored", onScene(func(s *scene) {
		made := s.create(s.sess, s.spec("one", s.info.GetName()))
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: nobody("agent:none"), Id: made.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE,
		})
		s.must(err)
		got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.must(err)
		same(s.site, made, got)
	})},
	{"ReviewIntercept of an unknown intercept", onScene(func(s *scene) {
		_, err := s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: s.agent, Id: "no:such", Disposition: manager.InterceptDispositionType_ACTIVE,
		})
		s.wants(err, codes.NotFound, `Intercept with ID "no:such" not found for this session`)
	})},
	{"ReviewIntercept by another workload's agent is OK and ignored", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		foreign := s.arriveAgent(s.newerAgent("db", 0))
		made := s.create(sc.sess, s.spec("one", "web"))
		s.approve(foreign, made.GetId(), "10.0.0.1")
		got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.must(err)
		same(s, made, got)
	}},
}

// prepare is what PrepareIntercept answers the case's user.
func (s *scene) prepare(spec *manager.InterceptSpec) *manager.PreparedIntercept {
	s.Helper()
	got, err := s.client.PrepareIntercept(s.ctx, &manager.CreateInterceptRequest{Session: s.sess, InterceptSpec: spec})
	s.must(err)
	return got
}

var prepareCases = []assertion{
	{"an unknown session", func(s *site) {
		_, err := s.client.PrepareIntercept(s.ctx, &manager.CreateInterceptRequest{Session: nobody("none"), InterceptSpec: s.spec("one", "web")})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"an unknown workload is the user's error, with OK", onScene(func(s *scene) {
		if got := s.prepare(s.spec("one", "none")); got.GetError() == "" || got.GetErrorCategory() != 1 {
			s.Errorf("%v", got)
		}
	})},
	{"an unknown port is the user's error, with OK", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.PortIdentifier = "none"
		if got := s.prepare(spec); got.GetError() == "" || got.GetErrorCategory() != 1 {
			s.Errorf("%v", got)
		}
	})},
	{"a port by name, by number and with its protocol", onScene(func(s *scene) {
		for _, port := range []string{"http", "8080", "http/TCP", "8080/TCP"} {
			spec := s.spec("one", s.info.GetName())
			spec.PortIdentifier = port
			got := s.prepare(spec)
			if got.GetError() != "" || got.GetErrorCategory() != 0 || got.GetNamespace() != s.ns || got.GetWorkloadKind() != kind ||
				got.GetContainerName() != "app" || got.GetContainerPort() != 8080 || got.GetProtocol() != "TCP" || got.GetServicePortName() != "http" {
				s.Errorf("%s: %v", port, got)
			}
		}
	})},
	{"no port named although there are several is the user's error", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.PortIdentifier = ""
		if got := s.prepare(spec); got.GetError() == "" || got.GetErrorCategory() != 1 {
			s.Errorf("%v", got)
		}
	})},
	{"all ports, the first in container_port and the rest in pod_ports", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.PortIdentifier, spec.NoDefaultPort = "all", true
		got := s.prepare(spec)
		all := []string{fmt.Sprintf("%d:%d/%s", got.GetContainerPort(), got.GetContainerPort(), got.GetProtocol())}
		for _, p := range got.GetPodPorts() {
			if !strings.Contains(p, "/") {
				p += "/TCP" // the default
			}
			all = append(all, p)
		}
		slices.Sort(all)
		if got.GetError() != "" || !slices.Equal(all, []string{"53:53/UDP", "8080:8080/TCP", "8081:8081/TCP"}) {
			s.Errorf("%v", got)
		}
	})},
	{"nothing is made", onScene(func(s *scene) {
		s.prepare(s.spec("one", s.info.GetName()))
		_, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Session: s.sess, Name: "one"})
		s.wantsCode(err, codes.NotFound)
	})},
	{"two definitions with one target", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.PortIdentifier, spec.PodPorts = "dns", []string{"8080:7001", "8081:7001"}
		if got := s.prepare(spec); !strings.Contains(got.GetError(), "multiple port definitions targeting 7001") || got.GetErrorCategory() != 1 {
			s.Errorf("%v", got)
		}
	})},
	{"two definitions with one container port", onScene(func(s *scene) {
		spec := s.spec("one", s.info.GetName())
		spec.PodPorts = []string{"8081:7001", "admin:7002"}
		if got := s.prepare(spec); !strings.Contains(got.GetError(), "multiple port definitions using container port 8081") || got.GetErrorCategory() != 1 {
			s.Errorf("%v", got)
		}
	})},
}
