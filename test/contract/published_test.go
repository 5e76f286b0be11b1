package contract

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
	"trivet/test/peersim"
)

// publishedCases follow the tests of the published manager.
var publishedCases = []assertion{
	{"connect: from arrival to departure of clients, agents and an intercept", connect},
	{"a client has one session", func(s *site) {
		a, b := s.arrive(), s.arrive()
		for _, sess := range []*manager.SessionInfo{a, b} {
			_, err := s.client.Remain(s.ctx, &manager.RemainRequest{Session: sess})
			s.must(err)
		}
	}},
	{"agents are found by name and namespace", func(s *site) {
		s.arriveAgent(s.newerAgent("db", 0))
		s.arriveAgent(s.newerAgent("web", 0))
		s.arriveAgent(s.newerAgent("web", 1))
		sess := s.arrive()
		for name, want := range map[string]int{"db": 1} {
			got, err := s.client.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: sess, Name: name, Namespace: s.ns})
			s.must(err)
			if len(got.GetAgents()) != want {
				s.Errorf("%d agents of %s", len(got.GetAgents()), name)
			}
		}
		_, err := s.client.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: sess, Name: "none", Namespace: s.ns})
		s.wantsCode(err, codes.NotFound)
	}},
}

// connect is the published manager's own walk through a session's life.
func connect(s *site) {
	got, err := s.client.Version(s.ctx, none)
	s.must(err)
	if got.GetVersion() == "" {
		s.Error("no version")
	}
	passing := s.arrive()
	_, err = s.client.Depart(s.ctx, passing)
	s.must(err)

	alice := s.arrive()
	s.present(s.client, alice)
	agents, err := s.client.WatchAgents(s.ctx, alice)
	s.must(err)
	same(s, new(manager.AgentInfoSnapshot), recv(s, agents))
	own, err := s.client.WatchIntercepts(s.ctx, alice)
	s.must(err)
	same(s, new(manager.InterceptInfoSnapshot), recv(s, own))

	hello := s.olderAgent("db", 0)
	helloSession := s.arriveAgent(hello)
	theirs, err := s.node.WatchIntercepts(s.ctx, helloSession)
	s.must(err)
	same(s, new(manager.InterceptInfoSnapshot), recv(s, theirs))
	same(s, &manager.AgentInfoSnapshot{Agents: []*manager.AgentInfo{hello}}, recv(s, agents))

	var demos []*manager.SessionInfo
	for n := range 2 {
		demos = append(demos, s.arriveAgent(s.olderAgent("web", n)))
	}
	count := func(n int) func(*manager.AgentInfoSnapshot) bool {
		return func(m *manager.AgentInfoSnapshot) bool { return len(m.GetAgents()) == n }
	}
	until(s, agents, "three agents", count(3))
	for _, sess := range append(slices.Clone(demos), helloSession) {
		_, err = s.node.Remain(s.ctx, &manager.RemainRequest{Session: sess})
		s.must(err)
	}
	_, err = s.client.Remain(s.ctx, &manager.RemainRequest{Session: alice})
	s.must(err)
	fourth := s.arriveAgent(s.olderAgent("web", 2))
	until(s, agents, "four agents", count(4))
	_, err = s.node.Depart(s.ctx, fourth)
	s.must(err)
	until(s, agents, "three agents again", count(3))

	spec := s.spec("first", "db")
	made := s.create(alice, spec)
	if made.GetSpec().GetName() != spec.GetName() || made.GetSpec().GetAgent() != spec.GetAgent() || made.GetSpec().GetTargetPort() != spec.GetTargetPort() {
		s.Errorf("made %v of %v", made.GetSpec(), spec)
	}
	until(s, own, "the client sees it wait", shows("first=WAITING"))
	until(s, theirs, "the agent sees it wait", shows("first=WAITING"))
	s.approve(helloSession, made.GetId(), hello.GetPodIp())
	until(s, own, "the client sees it served", shows("first=ACTIVE"))
	until(s, theirs, "the agent sees it served", shows("first=ACTIVE"))
	again := s.spec("first", "db")
	again.TargetPort++
	if got, err := s.client.CreateIntercept(s.ctx, &manager.CreateInterceptRequest{Session: alice, InterceptSpec: again}); err == nil || got != nil {
		s.Errorf("created again: %v, %v", got, err)
	}
	_, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: alice, Name: "first"})
	s.must(err)
	until(s, own, "the client sees it gone", shows(""))
	until(s, theirs, "the agent sees it gone", shows(""))
	if _, err = s.client.RemoveIntercept(s.ctx, &manager.RemoveInterceptRequest2{Session: passing, Name: "first"}); err == nil {
		s.Error("a departed client removed it")
	}
	for _, sess := range append(demos, helloSession) {
		_, err = s.node.Depart(s.ctx, sess)
		s.must(err)
	}
	_, err = s.client.Depart(s.ctx, alice)
	s.must(err)
}

// olderClient plays one through a server.
func (s *site) olderClient(at int, name string) *peersim.OlderClient {
	s.Helper()
	c := peersim.StartOlderClient(s.ctx, peersim.OlderClientConfig{
		Dial: peersim.Shared(s.clientConn(at, name)), Info: s.clientInfo(name), Root: true,
	})
	s.Cleanup(c.Close)
	return c
}

func (s *site) newerClient(at int, name string) *peersim.NewerClient {
	s.Helper()
	c := peersim.StartNewerClient(s.ctx, peersim.NewerClientConfig{
		Dial: peersim.Shared(s.clientConn(at, name)), Info: s.clientInfo(name), Root: true,
	})
	s.Cleanup(c.Close)
	return c
}

var peerCases = []assertion{
	{"an older agent gets ready, is kept alive and departs", func(s *site) {
		a := s.older("web", 0, quickly)
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		e, _ := s.await(a.Record, 0, peersim.Is(peersim.Remained))
		if e.Err != nil {
			s.Error(e.Err)
		}
		a.Close()
		if e, _ := s.await(a.Record, 0, peersim.Is(peersim.Departed)); e.Err != nil {
			s.Error(e.Err)
		}
		if a.Count(peersim.Dead)+a.Count(peersim.Broken) != 0 {
			s.Errorf("%v", a.Since(0))
		}
	}},
	{"a newer agent gets ready with deltas and departs", func(s *site) {
		a := s.newer("web", 0)
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		a.Close()
		if e, _ := s.await(a.Record, 0, peersim.Is(peersim.Departed)); e.Err != nil {
			s.Error(e.Err)
		}
	}},
	{"an older client's intercept is approved by an older agent, and its bytes come back", func(s *site) {
		a, c := s.older("web", 0), s.olderClient(s.other(), s.user("alice"))
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		s.await(c.Record, 0, peersim.Is(peersim.Ready))
		got, err := c.Intercept(s.ctx, s.spec("one", "web"))
		s.must(err)
		if got.GetPodName() != podName("web", 0) {
			s.Errorf("served by %s", got.GetPodName())
		}
		s.await(a.Record, 0, func(e peersim.Event) bool {
			return e.Kind == peersim.Snapshot && strings.HasSuffix(e.Subject, "=ACTIVE")
		})
		s.await(c.Record, 0, func(e peersim.Event) bool { return e.Kind == peersim.Pods && strings.HasSuffix(e.Subject, "*") })
		conn := visitor(false)
		t, err := a.Visit(s.ctx, got.GetId(), conn)
		s.must(err)
		_, err = t.Write([]byte("hello"))
		s.must(err)
		back, err := t.RecvData()
		s.must(err)
		if string(back) != "hello" {
			s.Errorf("%q came back", back)
		}
		s.must(t.CloseSend())
		s.await(c.Record, 0, peersim.About(peersim.Tunnelled, conn.String()))
		s.must(a.Report(c.Session().GetSessionId(), 5, 5))
		s.must(c.Remove(s.ctx, "one"))
		s.await(c.Record, c.Mark()-1, func(peersim.Event) bool { return len(c.Intercepts()) == 0 })
	}},
	{"a newer client's intercept is approved by a newer agent", func(s *site) {
		a, c := s.newer("web", 0), s.newerClient(s.other(), s.user("alice"))
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		s.await(c.Record, 0, peersim.Is(peersim.Ready))
		_, err := c.Intercept(s.ctx, s.spec("one", "web"))
		s.must(err)
		s.await(c.Record, 0, func(e peersim.Event) bool { return e.Kind == peersim.Pods && strings.HasSuffix(e.Subject, "*") })
	}},
	{"a newer client, which has no dial stream here, keeps its intercept", func(s *site) {
		a := s.newer("web", 0)
		c := peersim.StartNewerClient(s.ctx, peersim.NewerClientConfig{
			Dial: peersim.Shared(s.clientConn(s.at, s.user("alice"))), Info: s.clientInfo(s.user("alice")), Rhythm: peersim.Rhythm{Remain: 4 * time.Second},
		})
		defer c.Close()
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		s.await(c.Record, 0, peersim.Is(peersim.Ready))
		made, err := c.Intercept(s.ctx, s.spec("one", "web"))
		s.must(err)
		_, mark := s.await(a.Record, 0, peersim.About(peersim.Snapshot, made.GetId()+"=ACTIVE"))
		// Two keepalives are longer than an absent owner is waited for.
		_, seen := s.await(c.Record, c.Mark(), peersim.Is(peersim.Remained))
		s.await(c.Record, seen, peersim.Is(peersim.Remained))
		for _, e := range a.Since(mark) {
			s.Errorf("the agent saw: %v", e)
		}
	}},
	{"of two that wait for one port an agent serves the first and refuses the second", func(s *site) {
		// Both are of one client: others are refused by the manager.
		sc := s.scene(s.newerAgent("web", 1))
		a := s.spec("a", "web")
		a.HeaderFilters = map[string]string{"x": "1"}
		b := s.spec("b", "web")
		b.HeaderFilters = map[string]string{"x": "2"}
		see := sc.own()
		s.create(sc.sess, a)
		s.create(sc.sess, b)
		s.newer("web", 0)
		see("a=ACTIVE b=AGENT_ERROR")
	}},
	{"a client of a departed session arrives anew", func(s *site) {
		c := peersim.StartOlderClient(s.ctx, peersim.OlderClientConfig{
			Dial: peersim.Shared(s.clientConn(s.at, s.user("alice"))), Info: s.clientInfo(s.user("alice")), Rhythm: quick,
		})
		defer c.Close()
		s.await(c.Record, 0, peersim.Is(peersim.Ready))
		_, err := s.client.Depart(s.ctx, c.Session())
		s.must(err)
		_, mark := s.await(c.Record, 0, peersim.Is(peersim.Ended))
		s.await(c.Record, mark, peersim.Is(peersim.Arrived))
	}},
	{"an older agent whose session is gone arrives anew", func(s *site) {
		a := s.older("web", 0, quickly)
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		_, err := s.node.Depart(s.ctx, a.Session())
		s.must(err)
		_, mark := s.await(a.Record, 0, peersim.Is(peersim.Ended))
		s.await(a.Record, mark, peersim.Is(peersim.Ready))
	}},
	{"a newer agent whose session is gone has it back", func(s *site) {
		a := peersim.StartNewerAgent(s.ctx, peersim.NewerAgentConfig{
			Dial: peersim.Shared(s.nodeConn()), Info: s.newerAgent("web", 0), Rhythm: quick,
		})
		defer a.Close()
		s.await(a.Record, 0, peersim.Is(peersim.Ready))
		_, err := s.node.Depart(s.ctx, a.Session())
		s.must(err)
		_, mark := s.await(a.Record, 0, peersim.Is(peersim.Broken))
		_, mark = s.await(a.Record, mark, func(e peersim.Event) bool { return e.Kind == peersim.Reconnected && e.Err == nil })
		s.await(a.Record, mark, peersim.Is(peersim.Snapshot))
	}},
}
