package contract

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// clientRefused is a client that may not arrive, and why.
func clientRefused(text string, spoil func(*manager.ClientInfo)) func(*site) {
	return func(s *site) {
		info := s.clientInfo("alice")
		spoil(info)
		_, err := s.client.ArriveAsClient(s.ctx, info)
		s.wants(err, codes.InvalidArgument, "%s", text)
	}
}

// agentRefused is an agent that may not arrive, and why.
func agentRefused(text string, spoil func(*manager.AgentInfo)) func(*site) {
	return func(s *site) {
		for _, info := range []*manager.AgentInfo{s.olderAgent("web", 0), s.newerAgent("web", 0)} {
			spoil(info)
			_, err := s.node.ArriveAsAgent(s.ctx, info)
			s.wants(err, codes.InvalidArgument, "%s", text)
		}
	}
}

var arrivalCases = []assertion{
	{"a client needs a name", clientRefused("name must not be empty", func(c *manager.ClientInfo) { *c = manager.ClientInfo{} })},
	{"a client needs an install id", clientRefused("install ID must not be empty", func(c *manager.ClientInfo) { c.InstallId, c.Product, c.Version = "", "", "" })},
	{"a client needs a product", clientRefused("product must not be empty", func(c *manager.ClientInfo) { c.Product, c.Version = "", "" })},
	{"a client needs a version", clientRefused("version must not be empty", func(c *manager.ClientInfo) { c.Version = "" })},
	{"a client's version must be new enough", clientRefused("client version must be at least 2.6.0", func(c *manager.ClientInfo) { c.Version = "v2.5.9" })},
	{"a client's version must be semantic", func(s *site) {
		for _, v := range []string{"two", "2", "2.x.0", "2.30.0.1"} {
			info := s.clientInfo("alice")
			info.Version = v
			_, err := s.client.ArriveAsClient(s.ctx, info)
			s.wantsCode(err, codes.InvalidArgument)
		}
	}},
	{"a client's version may start with v and have a pre-release", func(s *site) {
		for _, v := range []string{"v2.6.0", "2.21.0-rc.1", "v2.20.2-64-gebb90267b"} {
			info := s.clientInfo("alice")
			info.Version = v
			_, err := s.client.ArriveAsClient(s.ctx, info)
			s.must(err)
		}
	}},
	{"a client needs no namespace", func(s *site) {
		info := s.clientInfo("alice")
		info.Namespace = ""
		_, err := s.client.ArriveAsClient(s.ctx, info)
		s.must(err)
	}},
	{"a client gets a random id and its install id back", func(s *site) {
		a, b := s.arrive(), s.arrive()
		if !uuid.MatchString(a.GetSessionId()) || a.GetSessionId() == b.GetSessionId() {
			s.Errorf("ids %q and %q", a.GetSessionId(), b.GetSessionId())
		}
		if a.InstallId == nil || a.GetInstallId() != "install-"+s.user("alice") {
			s.Errorf("install id %q", a.GetInstallId())
		}
		if a.GetManagerInstallId() == "" || a.GetManagerInstallId() != b.GetManagerInstallId() {
			s.Errorf("manager install ids %q and %q", a.GetManagerInstallId(), b.GetManagerInstallId())
		}
	}},
	{"an agent needs a name", agentRefused("name must not be empty", func(a *manager.AgentInfo) { proto.Reset(a) })},
	{"an agent needs a namespace", agentRefused("namespace must not be empty", func(a *manager.AgentInfo) { a.Namespace, a.Product, a.Version = "", "", "" })},
	{"an agent needs a product", agentRefused("product must not be empty", func(a *manager.AgentInfo) { a.Product, a.Version = "", "" })},
	{"an agent needs a version", agentRefused("version must not be empty", func(a *manager.AgentInfo) { a.Version, a.Mechanisms = "", nil })},
	{"an agent needs a mechanism", func(s *site) {
		info := s.olderAgent("web", 0)
		info.Mechanisms = nil
		_, err := s.node.ArriveAsAgent(s.ctx, info)
		s.wantsCode(err, codes.InvalidArgument)
	}},
	{"an agent's mechanism needs a name", agentRefused("mechanism 2: name must not be empty", func(a *manager.AgentInfo) {
		a.Mechanisms = append(a.Mechanisms, new(manager.AgentInfo_Mechanism))
	})},
	{"an agent's mechanism needs a product", agentRefused("mechanism 1: product must not be empty", func(a *manager.AgentInfo) {
		a.Mechanisms[0].Product, a.Mechanisms[0].Version = "", ""
	})},
	{"an agent's mechanism needs a version", agentRefused("mechanism 1: version must not be empty", func(a *manager.AgentInfo) { a.Mechanisms[0].Version = "" })},
	{"an agent needs neither address nor port", func(s *site) {
		info := s.olderAgent("web", 0)
		info.PodIp, info.ApiPort = "", 0
		s.arriveAgent(info)
	}},
	{"an older agent gets a random id, another one each time", func(s *site) {
		a := s.arriveAgent(s.olderAgent("web", 0))
		if rest, ok := strings.CutPrefix(a.GetSessionId(), "agent:"); !ok || !uuid.MatchString(rest) {
			s.Errorf("id %q", a.GetSessionId())
		}
		if a.InstallId != nil {
			s.Errorf("install id %q", a.GetInstallId())
		}
		_, err := s.node.Depart(s.ctx, a)
		s.must(err)
		if b := s.arriveAgent(s.olderAgent("web", 0)); b.GetSessionId() == a.GetSessionId() {
			s.Errorf("the same id %q after a Depart", b.GetSessionId())
		}
	}},
	{"a newer agent's id is made of its pod's uid", func(s *site) {
		if a := s.arriveAgent(s.newerAgent("web", 0)); a.GetSessionId() != "agent:"+podUID(s.ns, "web", 0) || a.InstallId != nil {
			s.Errorf("session %v", a)
		}
	}},
	{"an agent that arrives again has the session that it had", func(s *site) {
		info := s.newerAgent("web", 0)
		a := s.arriveAgent(info)
		if b := s.arriveAgent(info); b.GetSessionId() != a.GetSessionId() || b.GetSessionId() == "" {
			s.Errorf("%q after %q", b.GetSessionId(), a.GetSessionId())
		}
	}},
	{"an agent with a certificate of its own may arrive for its workload only", func(s *site) {
		info := s.newerAgent("web", 0)
		name := strings.Join([]string{s.ns, "deployment", "web", info.GetPodUid()}, "/")
		m := managersvc.NewManagerClient(s.w.conn(s, s.at, pki.RoleAgent, name))
		_, err := m.ArriveAsAgent(s.ctx, info)
		s.must(err)
		_, err = m.ArriveAsAgent(s.ctx, s.newerAgent("db", 0))
		s.wantsCode(err, codes.PermissionDenied)
	}},
	{"an arrival is seen through every server", func(s *site) {
		sess := s.arrive()
		for server := range 3 {
			_, err := s.asAt(server, s.user("alice")).Remain(s.ctx, &manager.RemainRequest{Session: sess})
			s.must(err)
		}
	}},
}
