package contract

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
)

var watchInterceptCases = []assertion{
	{"an unknown session", func(s *site) {
		stream, err := s.client.WatchIntercepts(s.ctx, nobody("none"))
		s.wants(refused(s, stream, err), codes.NotFound, `session "none" not found`)
		deltas, err := s.client.WatchInterceptsDelta(s.ctx, nobody("none"))
		s.wants(refused(s, deltas, err), codes.NotFound, `session "none" not found`)
	}},
	{"the first message comes at once, empty", func(s *site) {
		sess, agent := s.arrive(), s.arriveAgent(s.olderAgent("web", 0))
		a, err := s.client.WatchIntercepts(s.ctx, sess)
		s.must(err)
		same(s, new(manager.InterceptInfoSnapshot), recv(s, a))
		b, err := s.client.WatchInterceptsDelta(s.ctx, sess)
		s.must(err)
		same(s, new(manager.InterceptInfoDelta), recv(s, b))
		c, err := s.node.WatchIntercepts(s.ctx, agent)
		s.must(err)
		same(s, new(manager.InterceptInfoSnapshot), recv(s, c))
	}},
	{"a client sees its own only, an agent those of its workload", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		db := s.arriveAgent(s.newerAgent("db", 0))
		bob := s.as(s.user("bob"))
		bobs := s.arriveAs(bob, s.user("bob"))
		s.present(bob, bobs)
		s.create(sc.sess, s.spec("a", "web"))
		spec := s.spec("b", "web")
		spec.PortIdentifier = "admin"
		_, err := bob.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: bobs, InterceptSpec: spec})
		s.must(err)
		s.create(sc.sess, s.spec("c", "db"))
		own, err := s.client.WatchIntercepts(s.ctx, sc.sess)
		s.must(err)
		until(s, own, "the client's", shows("a=WAITING c=WAITING"))
		web, err := s.node.WatchIntercepts(s.ctx, sc.agent)
		s.must(err)
		m := until(s, web, "the agent's", func(m *manager.InterceptInfoSnapshot) bool { return len(m.GetIntercepts()) == 2 })
		var ids []string
		for _, i := range m.GetIntercepts() {
			ids = append(ids, i.GetId())
		}
		if !slices.IsSorted(ids) {
			s.Errorf("not in the order of ids: %v", ids)
		}
		dbs, err := s.node.WatchIntercepts(s.ctx, db)
		s.must(err)
		until(s, dbs, "the other agent's", shows("c=WAITING"))
	}},
	{"agents see WAITING, ACTIVE and AGENT_ERROR, not NO_MECHANISM", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		watch, err := s.node.WatchIntercepts(s.ctx, sc.agent)
		s.must(err)
		lacking := s.spec("lacking", "web")
		lacking.Mechanism, lacking.PortIdentifier = "grpc", "dns"
		s.create(sc.sess, lacking)
		a := s.create(sc.sess, s.spec("a", "web"))
		until(s, watch, "it waits", shows("a=WAITING"))
		s.approve(sc.agent, a.GetId(), podIP("web", 0))
		until(s, watch, "it is served", shows("a=ACTIVE"))
		spec := s.spec("b", "web")
		spec.PortIdentifier = "admin"
		b := s.create(sc.sess, spec)
		_, err = s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: sc.agent, Id: b.GetId(), Disposition: manager.InterceptDispositionType_AGENT_ERROR,
		})
		s.must(err)
		until(s, watch, "one is refused", shows("a=ACTIVE b=AGENT_ERROR"))
	}},
	{"deltas: all at first, then changes, and removals for what leaves", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		a := s.create(sc.sess, s.spec("a", "web"))
		own, err := s.client.WatchInterceptsDelta(s.ctx, sc.sess)
		s.must(err)
		theirs, err := s.node.WatchInterceptsDelta(s.ctx, sc.agent)
		s.must(err)
		if m := recv(s, own); len(m.GetUpserts()) != 1 || m.GetUpserts()[a.GetId()].GetSpec().GetName() != "a" || len(m.GetRemovals()) != 0 {
			s.Errorf("first: %v", m)
		}
		recv(s, theirs)
		s.approve(sc.agent, a.GetId(), podIP("web", 0))
		active := func(m *manager.InterceptInfoDelta) bool {
			return m.GetUpserts()[a.GetId()].GetDisposition() == manager.InterceptDispositionType_ACTIVE
		}
		until(s, own, "ACTIVE", active)
		until(s, theirs, "ACTIVE", active)
		_, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: sc.sess, Name: "a"})
		s.must(err)
		gone := func(m *manager.InterceptInfoDelta) bool { return slices.Equal(m.GetRemovals(), []string{a.GetId()}) }
		until(s, own, "gone", gone)
		until(s, theirs, "gone", gone)
	}},
	{"deltas: what an agent may not see any more is a removal", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		a := s.create(sc.sess, s.spec("a", "web"))
		theirs, err := s.node.WatchInterceptsDelta(s.ctx, sc.agent)
		s.must(err)
		until(s, theirs, "there", func(m *manager.InterceptInfoDelta) bool { return m.GetUpserts()[a.GetId()] != nil })
		odd := s.newerAgent("web", 1)
		odd.Version = "2.30.1"
		s.arriveAgent(odd)
		until(s, theirs, "NO_AGENT is not for agents", func(m *manager.InterceptInfoDelta) bool { return slices.Contains(m.GetRemovals(), a.GetId()) })
	}},
	{"what is equal is not sent again", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		watch, err := s.client.WatchInterceptsDelta(s.ctx, sc.sess)
		s.must(err)
		recv(s, watch)
		s.arriveAgent(s.newerAgent("web", 1)) // nothing that the watch shows
		a := s.create(sc.sess, s.spec("a", "web"))
		if m := recv(s, watch); m.GetUpserts()[a.GetId()] == nil {
			s.Errorf("next came %v", m)
		}
	}},
}

var watchAgentCases = []assertion{
	{"an unknown session, or none", func(s *site) {
		for _, id := range []string{"none", ""} {
			a, err := s.client.WatchAgents(s.ctx, nobody(id))
			s.wants(refused(s, a, err), codes.NotFound, "session %q not found", id)
			b, err := s.client.WatchAgentsDelta(s.ctx, nobody(id))
			s.wants(refused(s, b, err), codes.NotFound, "session %q not found", id)
			c, err := s.client.WatchAgentsNS(s.ctx, &manager.AgentsRequest{Session: nobody(id), Namespaces: []string{s.ns}})
			s.wants(refused(s, c, err), codes.NotFound, "session %q not found", id)
		}
	}},
	{"empty at once, then what arrives and leaves", both(func(s *site, agent func(string, int) *manager.AgentInfo) {
		watch, err := s.client.WatchAgents(s.ctx, s.arrive())
		s.must(err)
		before := pods(recv(s, watch)) // of the other generation
		info := agent("", 0)
		sess := s.arriveAgent(info)
		until(s, watch, "arrived", func(m *manager.AgentInfoSnapshot) bool { return strings.Contains(pods(m), info.GetPodName()) })
		_, err = s.node.Depart(s.ctx, sess)
		s.must(err)
		until(s, watch, "left", func(m *manager.AgentInfoSnapshot) bool { return pods(m) == before })
	})},
	{"only those of the connected namespace", func(s *site) {
		s.arriveAgent(s.newerAgent("web", 0))
		info := s.clientInfo("alice")
		info.Namespace = "elsewhere"
		sess, err := s.client.ArriveAsClient(s.ctx, info)
		s.must(err)
		watch, err := s.client.WatchAgents(s.ctx, sess)
		s.must(err)
		if m := recv(s, watch); len(m.GetAgents()) != 0 {
			s.Errorf("%s", pods(m))
		}
		listed, err := s.client.WatchAgentsNS(s.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{s.ns, "nowhere"}})
		s.must(err)
		if m := recv(s, listed); pods(m) != podName("web", 0) {
			s.Errorf("%s", pods(m))
		}
	}},
	{"deltas by session id", func(s *site) {
		first := s.arriveAgent(s.newerAgent("web", 0))
		watch, err := s.client.WatchAgentsDelta(s.ctx, s.arrive())
		s.must(err)
		if m := recv(s, watch); !slices.Equal(slices.Collect(maps.Keys(m.GetUpserts())), []string{first.GetSessionId()}) {
			s.Errorf("first: %v", m)
		}
		second := s.arriveAgent(s.olderAgent("web", 1))
		if m := recv(s, watch); !slices.Equal(slices.Collect(maps.Keys(m.GetUpserts())), []string{second.GetSessionId()}) || len(m.GetRemovals()) != 0 {
			s.Errorf("arrived: %v", m)
		}
		_, err = s.node.Depart(s.ctx, first)
		s.must(err)
		if m := recv(s, watch); len(m.GetUpserts()) != 0 || !slices.Equal(m.GetRemovals(), []string{first.GetSessionId()}) {
			s.Errorf("left: %v", m)
		}
	}},
}

var watchPodCases = []assertion{
	{"an unknown session", func(s *site) {
		a, err := s.client.WatchAgentPods(s.ctx, nobody("none"))
		s.wants(refused(s, a, err), codes.NotFound, `session "none" not found`)
		b, err := s.client.WatchAgentPodsDelta(s.ctx, nobody("none"))
		s.wants(refused(s, b, err), codes.NotFound, `session "none" not found`)
		c, err := s.client.WatchAgentPodsInNamespacesDelta(s.ctx, &manager.AgentsRequest{Session: nobody("none")})
		s.wants(refused(s, c, err), codes.NotFound, `session "none" not found`)
	}},
	{"an agent's session", func(s *site) {
		agent := s.arriveAgent(s.newerAgent("web", 0))
		a, err := s.client.WatchAgentPods(s.ctx, agent)
		s.wants(refused(s, a, err), codes.NotFound, "session %q not found", agent.GetSessionId())
	}},
	{"all that is to know of a pod", func(s *site) {
		agent := s.newerAgent("web", 0)
		s.arriveAgent(agent)
		s.arriveAgent(s.olderAgent("web", 1))
		watch, err := s.client.WatchAgentPods(s.ctx, s.arrive())
		s.must(err)
		m := recv(s, watch)
		slices.SortFunc(m.Agents, func(a, b *manager.AgentPodInfo) int { return strings.Compare(a.GetPodName(), b.GetPodName()) })
		ip := netip.MustParseAddr(podIP("web", 0)).As4()
		ip1 := netip.MustParseAddr(podIP("web", 1)).As4()
		same(s, []*manager.AgentPodInfo{
			{PodName: podName("web", 0), Namespace: s.ns, PodIp: ip[:], ApiPort: 9999, WorkloadName: "web", PodId: agent.GetPodUid()},
			{PodName: podName("web", 1), Namespace: s.ns, PodIp: ip1[:], ApiPort: 9999, WorkloadName: "web"},
		}, m.GetAgents())
	}},
	{"intercepted by the asking client only, and not any more", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		bob := s.as(s.user("bob"))
		own, err := s.client.WatchAgentPods(s.ctx, sc.sess)
		s.must(err)
		recv(s, own)
		s.create(sc.sess, s.spec("one", "web"))
		until(s, own, "intercepted", func(m *manager.AgentPodInfoSnapshot) bool { return m.GetAgents()[0].GetIntercepted() })
		theirs, err := bob.WatchAgentPods(s.ctx, s.arriveAs(bob, s.user("bob")))
		s.must(err)
		if m := recv(s, theirs); len(m.GetAgents()) != 1 || m.GetAgents()[0].GetIntercepted() {
			s.Errorf("bob sees %v", m)
		}
		_, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: sc.sess, Name: "one"})
		s.must(err)
		until(s, own, "not intercepted", func(m *manager.AgentPodInfoSnapshot) bool { return !m.GetAgents()[0].GetIntercepted() })
	}},
	{"deltas: all, then the pod whose state flips, then its removal", func(s *site) {
		sc := s.scene(s.newerAgent("web", 0))
		id := sc.agent.GetSessionId()
		for _, form := range []string{"connected", "listed"} {
			var next func() *manager.AgentPodInfoDelta
			if form == "connected" {
				stream, err := s.client.WatchAgentPodsDelta(s.ctx, sc.sess)
				s.must(err)
				next = func() *manager.AgentPodInfoDelta { return recv(s, stream) }
			} else {
				// An empty namespace is the connected one.
				stream, err := s.client.WatchAgentPodsInNamespacesDelta(s.ctx, &manager.AgentsRequest{Session: sc.sess, Namespaces: []string{"", "nowhere"}})
				s.must(err)
				next = func() *manager.AgentPodInfoDelta { return recv(s, stream) }
			}
			if m := next(); len(m.GetUpserts()) != 1 || m.GetUpserts()[id].GetIntercepted() {
				s.Errorf("%s, first: %v", form, m)
			}
			s.create(sc.sess, s.spec("one", "web"))
			if m := next(); len(m.GetUpserts()) != 1 || !m.GetUpserts()[id].GetIntercepted() {
				s.Errorf("%s, intercepted: %v", form, m)
			}
			_, err := s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: sc.sess, Name: "one"})
			s.must(err)
			if m := next(); len(m.GetUpserts()) != 1 || m.GetUpserts()[id].GetIntercepted() {
				s.Errorf("%s, not intercepted: %v", form, m)
			}
			second := s.arriveAgent(s.newerAgent("web", 1))
			next()
			_, err = s.node.Depart(s.ctx, second)
			s.must(err)
			if m := next(); len(m.GetUpserts()) != 0 || !slices.Equal(m.GetRemovals(), []string{second.GetSessionId()}) {
				s.Errorf("%s, left: %v", form, m)
			}
		}
	}},
}

// event finds what a delta says of a workload.
func event(m *manager.WorkloadEventsDelta, name string) *manager.WorkloadEvent {
	for _, e := range m.GetEvents() {
		if e.GetWorkload().GetName() == name {
			return e
		}
	}
	return nil
}

var watchWorkloadCases = []assertion{
	{"no session at all", func(s *site) {
		stream, err := s.client.WatchWorkloads(s.ctx, new(manager.WorkloadEventsRequest))
		s.wants(refused(s, stream, err), codes.InvalidArgument, "SessionInfo is required")
	}},
	{"an unknown session", func(s *site) {
		stream, err := s.client.WatchWorkloads(s.ctx, &manager.WorkloadEventsRequest{SessionInfo: nobody("none")})
		s.wants(refused(s, stream, err), codes.NotFound, `session "none" not found`)
	}},
	{"everything at first, as added", func(s *site) {
		for _, ns := range []string{"", s.ns} {
			stream, err := s.client.WatchWorkloads(s.ctx, &manager.WorkloadEventsRequest{SessionInfo: s.arrive(), Namespace: ns})
			s.must(err)
			m := recv(s, stream)
			if len(m.GetEvents()) != len(workloads) {
				s.Fatalf("%d workloads", len(m.GetEvents()))
			}
			for name := range workloads {
				w := event(m, name)
				if w.GetType() != manager.WorkloadEvent_ADDED_UNSPECIFIED || w.GetWorkload().GetKind() != manager.WorkloadInfo_DEPLOYMENT ||
					w.GetWorkload().GetNamespace() != s.ns || w.GetWorkload().GetState() != manager.WorkloadInfo_AVAILABLE ||
					w.GetWorkload().GetAgentState() != manager.WorkloadInfo_NO_AGENT_UNSPECIFIED {
					s.Errorf("%s: %v", name, w)
				}
			}
		}
	}},
	{"the state of the agent: none, INSTALLED, INTERCEPTED with its clients, and back", func(s *site) {
		sess := s.arrive()
		s.present(s.client, sess)
		stream, err := s.client.WatchWorkloads(s.ctx, &manager.WorkloadEventsRequest{SessionInfo: sess})
		s.must(err)
		recv(s, stream)
		next := func(want manager.WorkloadInfo_AgentState) *manager.WorkloadEvent {
			s.Helper()
			m := until(s, stream, want.String(), func(m *manager.WorkloadEventsDelta) bool {
				e := event(m, "web")
				return e != nil && e.GetWorkload().GetAgentState() == want
			})
			if m.GetSince() == nil {
				s.Error("no time of the delta before")
			}
			e := event(m, "web")
			if e.GetType() != manager.WorkloadEvent_MODIFIED {
				s.Errorf("%s", e.GetType())
			}
			return e
		}
		agent := s.arriveAgent(s.newerAgent("web", 0))
		next(manager.WorkloadInfo_INSTALLED)
		made := s.create(sess, s.spec("one", "web"))
		s.approve(agent, made.GetId(), podIP("web", 0))
		if e := next(manager.WorkloadInfo_INTERCEPTED); len(e.GetWorkload().GetInterceptClients()) != 1 ||
			e.GetWorkload().GetInterceptClients()[0].GetClient() != s.user("alice") {
			s.Errorf("clients %v", e.GetWorkload().GetInterceptClients())
		}
		_, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: "one"})
		s.must(err)
		next(manager.WorkloadInfo_INSTALLED)
		_, err = s.node.Depart(s.ctx, agent)
		s.must(err)
		next(manager.WorkloadInfo_NO_AGENT_UNSPECIFIED)
	}},
}

var watchNetworkCases = []assertion{
	{"an unknown session", func(s *site) {
		stream, err := s.client.WatchClusterInfo(s.ctx, nobody("none"))
		s.wants(refused(s, stream, err), codes.NotFound, `session "none" not found`)
	}},
	{"both generations learn domain and subnets at once", func(s *site) {
		for _, sess := range []*manager.SessionInfo{nobody(""), s.arrive()} {
			stream, err := s.client.WatchClusterInfo(s.ctx, sess)
			s.must(err)
			m := recv(s, stream)
			if d := m.GetDns().GetClusterDomain(); !strings.HasSuffix(d, ".") || d != m.GetClusterDomain() {
				s.Errorf("domains %q and %q", d, m.GetClusterDomain())
			}
			want := netip.MustParsePrefix(podIP("web", 0) + "/24").Masked().Addr().As4()
			if !slices.ContainsFunc(m.GetPodSubnets(), func(n *manager.IPNet) bool { return bytes.Equal(n.GetIp(), want[:]) && n.GetMask() == 24 }) {
				s.Errorf("pod subnets %v", m.GetPodSubnets())
			}
			if m.GetRouting() == nil || len(m.GetManagerPodIp()) != 4 || m.GetManagerPodPort() == 0 {
				s.Errorf("routing %v, manager %v:%d", m.GetRouting(), m.GetManagerPodIp(), m.GetManagerPodPort())
			}
		}
	}},
}
