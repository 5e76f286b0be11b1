package contract

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"

	"trivet/proto/telepresence/manager"
	"trivet/test/peersim"
)

// qtypeA is the type of questions for IPv4 addresses.
const qtypeA = 1

// localhostA is the contract's example of an answer.
var localhostA, _ = hex.DecodeString("096c6f63616c686f737400" + "0001" + "0001" + "00000004" + "0004" + "7f000001")

// recordA is the one record of a name.
func recordA(name, ip string) []byte {
	var b []byte
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	b = append(b, 0, 0, 1, 0, 1, 0, 0, 0, 4, 0, 4)
	return append(b, netip.MustParseAddr(ip).AsSlice()...)
}

// resolving is an older agent that answers every question so.
func resolving(answer *manager.DNSResponse) func(*peersim.OlderAgentConfig) {
	return func(c *peersim.OlderAgentConfig) {
		c.Resolve = func(*manager.DNSRequest) *manager.DNSResponse { return answer }
	}
}

// askable waits until an agent can be asked: it has shown its age by then.
func (s *site) askable(a *peersim.OlderAgent) {
	s.Helper()
	s.await(a.Record, 0, peersim.Is(peersim.Ready))
	// The stream's header comes when the manager can ask over it; a peer does not
	// tell, so a question of somebody who must ask the agent does.
	probe := s.as(s.user("probe"))
	sess := s.arriveAs(probe, s.user("probe"))
	for a.Count(peersim.Resolved) == 0 {
		_, err := probe.LookupDNS(s.ctx, &manager.DNSRequest{Session: sess, Name: "probe.invalid.", Type: qtypeA})
		s.must(err)
	}
	_, err := probe.Depart(s.ctx, sess)
	s.must(err)
}

// lookup asks for an address.
func (s *site) lookup(sess *manager.SessionInfo, name string) *manager.DNSResponse {
	s.Helper()
	got, err := s.client.LookupDNS(s.ctx, &manager.DNSRequest{Session: sess, Name: name, Type: qtypeA})
	s.must(err)
	return got
}

var nameCases = []assertion{
	{"LookupDNS of an unknown session", func(s *site) {
		_, err := s.client.LookupDNS(s.ctx, &manager.DNSRequest{Session: nobody("none"), Name: "localhost.", Type: qtypeA})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"the manager resolves when there is no agent, in wire form and under the name that was asked for", func(s *site) {
		sess := s.arrive()
		for _, name := range []string{"db.", "db." + s.ns + ".", "db." + s.ns + ".svc.cluster.local."} {
			if got := s.lookup(sess, name); got.GetRCode() != 0 || !bytes.Equal(got.GetRrs(), recordA(name, podIP("db", 0))) {
				s.Errorf("%s: code %d, %x", name, got.GetRCode(), got.GetRrs())
			}
		}
	}},
	{"a name that is not there", func(s *site) {
		if got := s.lookup(s.arrive(), "none."); got.GetRCode() != 3 || len(got.GetRrs()) != 0 {
			s.Errorf("code %d, %x", got.GetRCode(), got.GetRrs())
		}
	}},
	{"a name without an address of that type", func(s *site) {
		got, err := s.client.LookupDNS(s.ctx, &manager.DNSRequest{Session: s.arrive(), Name: "db.", Type: 28})
		s.must(err)
		if got.GetRCode() != 0 || len(got.GetRrs()) != 0 {
			s.Errorf("code %d, %x", got.GetRCode(), got.GetRrs())
		}
	}},
	{"an older agent of the client's namespace answers", func(s *site) {
		answer := &manager.DNSResponse{Rrs: localhostA}
		a := s.older("web", 0, resolving(answer))
		s.askable(a)
		sess := s.arrive()
		same(s, answer, s.lookup(sess, "db."))
		e, _ := s.await(a.Record, 0, peersim.About(peersim.Resolved, "db."))
		if e.Err != nil {
			s.Error(e.Err)
		}
	}},
	{"an agent of what the client intercepts comes before others", func(s *site) {
		web, db := s.older("web", 0, resolving(&manager.DNSResponse{RCode: 3})), s.older("db", 0, resolving(&manager.DNSResponse{Rrs: localhostA}))
		s.askable(web)
		s.askable(db)
		sess := s.arrive()
		s.create(sess, s.spec("one", "db"))
		for range 4 {
			if got := s.lookup(sess, "name."); got.GetRCode() != 0 {
				s.Fatalf("code %d: the other agent answered", got.GetRCode())
			}
		}
	}},
	{"the lowest code of two agents is the answer", func(s *site) {
		a, b := s.older("web", 0, resolving(&manager.DNSResponse{RCode: 3})), s.older("web", 1, resolving(&manager.DNSResponse{Rrs: localhostA}))
		s.askable(a)
		s.askable(b)
		sess := s.arrive()
		for range 4 {
			if got := s.lookup(sess, "name."); got.GetRCode() != 0 || !bytes.Equal(got.GetRrs(), localhostA) {
				s.Fatalf("code %d, %x", got.GetRCode(), got.GetRrs())
			}
		}
	}},
	{"an agent's no ends the lookup", func(s *site) {
		s.askable(s.older("web", 0, resolving(&manager.DNSResponse{RCode: 3})))
		if got := s.lookup(s.arrive(), "db."); got.GetRCode() != 3 || len(got.GetRrs()) != 0 {
			s.Errorf("code %d, %x", got.GetRCode(), got.GetRrs())
		}
	}},
	{"two equal questions at the same time have an answer each", func(s *site) {
		s.askable(s.older("web", 0, resolving(&manager.DNSResponse{Rrs: localhostA})))
		sess := s.arrive()
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				got, err := s.client.LookupDNS(s.ctx, &manager.DNSRequest{Session: sess, Name: "same.", Type: qtypeA})
				if err != nil || !bytes.Equal(got.GetRrs(), localhostA) {
					s.Errorf("%v, %v", got, err)
				}
			})
		}
		wg.Wait()
	}},
	{"an agent that does not answer is not waited for beyond a second", func(s *site) {
		ctx := s.ctx
		agent := s.arriveAgent(s.olderAgent("web", 0))
		stream, err := s.node.WatchLookupDNS(ctx, agent)
		s.must(err)
		_, err = stream.Header()
		s.must(err)
		sess := s.arrive()
		if got := s.lookup(sess, "db."); !bytes.Equal(got.GetRrs(), recordA("db.", podIP("db", 0))) {
			s.Errorf("code %d, %x", got.GetRCode(), got.GetRrs())
		}
		q := recv(s, stream)
		if q.GetName() != "db." || q.GetType() != qtypeA || q.GetSession().GetSessionId() != sess.GetSessionId() {
			s.Errorf("the agent was asked %v", q)
		}
		// Its answer comes too late, which is no error.
		_, err = s.node.AgentLookupDNSResponse(ctx, &manager.DNSAgentResponse{Session: agent, Request: q})
		s.must(err)
	}},
	{"a type that is not supported", func(s *site) {
		sess, err := s.client.ArriveAsClient(s.ctx, s.olderClientInfo())
		s.must(err)
		_, err = s.client.LookupDNS(s.ctx, &manager.DNSRequest{Session: sess, Name: "localhost.", Type: 257})
		s.wantsCode(err, codes.Unimplemented)
	}},
	{"WatchLookupDNS of an unknown session", func(s *site) {
		stream, err := s.node.WatchLookupDNS(s.ctx, nobody("agent:none"))
		s.wants(refused(s, stream, err), codes.NotFound, `session "agent:none" not found`)
	}},
	{"WatchLookupDNS ends with OK when the session does", func(s *site) {
		agent := s.arriveAgent(s.olderAgent("web", 0))
		stream, err := s.node.WatchLookupDNS(s.ctx, agent)
		s.must(err)
		_, err = stream.Header()
		s.must(err)
		_, err = s.node.Depart(s.ctx, agent)
		s.must(err)
		ends(s, stream, codes.OK)
	}},
	{"Lookup of an unknown session", func(s *site) {
		_, err := s.client.Lookup(s.ctx, &manager.LookupRequest{Session: nobody("none"), Name: "localhost."})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"Lookup needs a name that ends with a dot", func(s *site) {
		sess := s.arrive()
		for _, name := range []string{"", ".", "localhost"} {
			_, err := s.client.Lookup(s.ctx, &manager.LookupRequest{Session: sess, Name: name})
			s.wants(err, codes.InvalidArgument, "empty name")
		}
	}},
	{"Lookup answers addresses", func(s *site) {
		sess := s.arrive()
		got, err := s.client.Lookup(s.ctx, &manager.LookupRequest{Session: sess, Name: "db."})
		s.must(err)
		ip := netip.MustParseAddr(podIP("db", 0)).AsSlice()
		if len(got.GetIps()) != 1 || !bytes.Equal(got.GetIps()[0], ip) {
			s.Errorf("%x, want %x", got.GetIps(), ip)
		}
		got, err = s.client.Lookup(s.ctx, &manager.LookupRequest{Session: sess, Name: "none."})
		s.must(err)
		if len(got.GetIps()) != 0 {
			s.Errorf("%x for what is not there", got.GetIps())
		}
	}},
}

func (s *site) olderClientInfo() *manager.ClientInfo {
	info := s.clientInfo(s.user("alice"))
	info.Version = "2.20.2"
	return info
}

var uninstallCases = []assertion{
	{"an unknown client", func(s *site) {
		_, err := s.operator().UninstallAgents(s.ctx, &manager.UninstallAgentsRequest{SessionInfo: nobody("none")})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"a workload that is missing, before any other goes", func(s *site) {
		op := s.operator()
		agent := s.arriveAgent(s.newerAgent("web", 0))
		_, err := op.UninstallAgents(s.ctx, &manager.UninstallAgentsRequest{
			SessionInfo: s.arriveAs(op, s.user("operator")), Agents: []string{"web", "none"},
		})
		s.wants(err, codes.NotFound, "Workload none.%s not found", s.ns)
		_, err = s.node.Remain(s.ctx, &manager.RemainRequest{Session: agent})
		s.must(err)
	}},
	{"nodes are not to run agents of named workloads any more, or of all", func(s *site) {
		op := s.operator()
		sess := s.arriveAs(op, s.user("operator"))
		for _, name := range []string{"db", "web"} {
			s.arriveAgent(s.newerAgent(name, 0))
			if name == "web" {
				s.arriveAgent(s.newerAgent(name, 1))
				s.arriveAgent(s.newerAgent(name, 2))
			}
			_, err := op.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: sess, Name: name})
			s.must(err)
		}
		s.w.orders.await(s, s.ns, "db web")
		_, err := op.UninstallAgents(s.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess, Agents: []string{"web"}})
		s.must(err)
		s.w.orders.await(s, s.ns, "db")
		_, err = op.UninstallAgents(s.ctx, &manager.UninstallAgentsRequest{SessionInfo: sess})
		s.must(err)
		s.w.orders.await(s, s.ns, "")
	}},
}
