package contract

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/proto/telepresence/manager"
)

// nobody is a session that never was.
func nobody(id string) *manager.SessionInfo { return &manager.SessionInfo{SessionId: id} }

var livenessCases = []assertion{
	{"Remain of a client", func(s *site) {
		_, err := s.client.Remain(s.ctx, &manager.RemainRequest{Session: s.arrive()})
		s.must(err)
	}},
	{"Remain of an agent", both(func(s *site, agent func(string, int) *manager.AgentInfo) {
		_, err := s.node.Remain(s.ctx, &manager.RemainRequest{Session: s.arriveAgent(agent("", 0))})
		s.must(err)
	})},
	{"Remain with the time of the last activity", func(s *site) {
		_, err := s.client.Remain(s.ctx, &manager.RemainRequest{Session: s.arrive(), LastActivity: timestamppb.New(time.Now().Add(-time.Hour))})
		s.must(err)
	}},
	{"Remain of an unknown session", func(s *site) {
		for _, id := range []string{"00000000-0000-4000-8000-000000000000", "agent:none", ""} {
			_, err := s.client.Remain(s.ctx, &manager.RemainRequest{Session: nobody(id)})
			s.wants(err, codes.NotFound, "Session %q not found", id)
		}
	}},
	{"Remain of a departed session", func(s *site) {
		sess := s.arrive()
		_, err := s.client.Depart(s.ctx, sess)
		s.must(err)
		_, err = s.client.Remain(s.ctx, &manager.RemainRequest{Session: sess})
		s.wants(err, codes.NotFound, "Session %q not found", sess.GetSessionId())
	}},
	{"only the id of a session counts", func(s *site) {
		sess := s.arrive()
		_, err := s.client.Remain(s.ctx, &manager.RemainRequest{Session: nobody(sess.GetSessionId())})
		s.must(err)
	}},
	{"Depart of an unknown session is OK", func(s *site) {
		for _, id := range []string{"none", "agent:none", ""} {
			_, err := s.client.Depart(s.ctx, nobody(id))
			s.must(err)
		}
	}},
	{"Depart twice is OK", func(s *site) {
		sess := s.arrive()
		for range 2 {
			_, err := s.client.Depart(s.ctx, sess)
			s.must(err)
		}
	}},
}

var reconnectCases = []assertion{
	{"ReconnectAgent of a known session", func(s *site) {
		info := s.newerAgent("web", 0)
		sess := s.arriveAgent(info)
		_, err := s.node.ReconnectAgent(s.ctx, &manager.ReconnectAgentRequest{Session: sess, Agent: info})
		s.must(err)
	}},
	{"ReconnectAgent of an unknown session stores the agent under the id", func(s *site) {
		info := s.newerAgent("web", 0)
		sess := s.arriveAgent(info)
		_, err := s.node.Depart(s.ctx, sess)
		s.must(err)
		_, err = s.node.ReconnectAgent(s.ctx, &manager.ReconnectAgentRequest{Session: sess, Agent: info})
		s.must(err)
		_, err = s.node.Remain(s.ctx, &manager.RemainRequest{Session: sess})
		s.must(err)
	}},
	{"ReconnectAgent brings back what waits for an agent", func(s *site) {
		info := s.newerAgent("web", 0)
		agent, sess := s.arriveAgent(info), s.arrive()
		s.present(s.client, sess)
		watch, err := s.client.WatchIntercepts(s.ctx, sess)
		s.must(err)
		s.create(sess, s.spec("one", "web"))
		until(s, watch, "it waits", shows("one=WAITING"))
		_, err = s.node.Depart(s.ctx, agent)
		s.must(err)
		until(s, watch, "the last agent is gone", shows("one=NO_AGENT"))
		_, err = s.node.ReconnectAgent(s.ctx, &manager.ReconnectAgentRequest{Session: agent, Agent: info})
		s.must(err)
		until(s, watch, "an agent is back", shows("one=WAITING"))
	}},
	{"ReconnectClient of a known session changes nothing", func(s *site) {
		sess := s.arrive()
		_, err := s.client.ReconnectClient(s.ctx, &manager.ReconnectClientRequest{
			Session: sess, Client: s.clientInfo(s.user("alice")),
			Intercepts: []*manager.InterceptInfo{{Id: sess.GetSessionId() + ":fake", Spec: s.spec("fake", "web"), Disposition: manager.InterceptDispositionType_ACTIVE}},
			Agents:     []*manager.AgentInfo{s.newerAgent("web", 1)},
		})
		s.must(err)
		watch, err := s.client.WatchIntercepts(s.ctx, sess)
		s.must(err)
		if m := recv(s, watch); len(m.GetIntercepts()) != 0 {
			s.Errorf("it believes in %s", states(m.GetIntercepts()))
		}
		agents, err := s.client.WatchAgents(s.ctx, sess)
		s.must(err)
		if m := recv(s, agents); len(m.GetAgents()) != 0 {
			s.Errorf("it believes in agents %s", pods(m))
		}
	}},
}

var removalCases = []assertion{
	{"watches of a client end with OK when it departs", func(s *site) {
		sess := s.arrive()
		intercepts, err := s.client.WatchIntercepts(s.ctx, sess)
		s.must(err)
		deltas, err := s.client.WatchInterceptsDelta(s.ctx, sess)
		s.must(err)
		agents, err := s.client.WatchAgents(s.ctx, sess)
		s.must(err)
		agentDeltas, err := s.client.WatchAgentsDelta(s.ctx, sess)
		s.must(err)
		agentNS, err := s.client.WatchAgentsNS(s.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{s.ns}})
		s.must(err)
		pod, err := s.client.WatchAgentPods(s.ctx, sess)
		s.must(err)
		podDeltas, err := s.client.WatchAgentPodsDelta(s.ctx, sess)
		s.must(err)
		podNS, err := s.client.WatchAgentPodsInNamespacesDelta(s.ctx, &manager.AgentsRequest{Session: sess, Namespaces: []string{s.ns}})
		s.must(err)
		workloads, err := s.client.WatchWorkloads(s.ctx, &manager.WorkloadEventsRequest{SessionInfo: sess})
		s.must(err)
		network, err := s.client.WatchClusterInfo(s.ctx, sess)
		s.must(err)
		dials := s.present(s.client, sess)
		recv(s, intercepts)
		recv(s, deltas)
		recv(s, agents)
		recv(s, agentDeltas)
		recv(s, agentNS)
		recv(s, pod)
		recv(s, podDeltas)
		recv(s, podNS)
		recv(s, workloads)
		recv(s, network)
		_, err = s.asAt(s.other(), s.user("alice")).Depart(s.ctx, sess)
		s.must(err)
		ends(s, intercepts, codes.OK)
		ends(s, deltas, codes.OK)
		ends(s, agents, codes.OK)
		ends(s, agentDeltas, codes.OK)
		ends(s, agentNS, codes.OK)
		ends(s, pod, codes.OK)
		ends(s, podDeltas, codes.OK)
		ends(s, podNS, codes.OK)
		ends(s, workloads, codes.OK)
		ends(s, network, codes.OK)
		ends(s, dials, codes.OK)
	}},
	{"watches of an agent end with OK when it departs", both(func(s *site, agent func(string, int) *manager.AgentInfo) {
		sess := s.arriveAgent(agent("", 0))
		intercepts, err := s.node.WatchIntercepts(s.ctx, sess)
		s.must(err)
		deltas, err := s.node.WatchInterceptsDelta(s.ctx, sess)
		s.must(err)
		dials := s.present(s.node, sess)
		recv(s, intercepts)
		recv(s, deltas)
		_, err = s.node.Depart(s.ctx, sess)
		s.must(err)
		ends(s, intercepts, codes.OK)
		ends(s, deltas, codes.OK)
		ends(s, dials, codes.OK)
	})},
	{"intercepts go with their client", both(func(s *site, agent func(string, int) *manager.AgentInfo) {
		info := agent("", 0)
		asess := s.arriveAgent(info)
		watch, err := s.node.WatchIntercepts(s.ctx, asess)
		s.must(err)
		sess := s.arrive()
		s.present(s.client, sess)
		made := s.create(sess, s.spec("one", info.GetName()))
		until(s, watch, "the intercept is there", shows("one=WAITING"))
		_, err = s.client.Depart(s.ctx, sess)
		s.must(err)
		until(s, watch, "the intercept is gone", shows(""))
		_, err = s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.wants(err, codes.NotFound, "Intercept named %q not found", made.GetId())
	})},
}
