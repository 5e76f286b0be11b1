package contract

import (
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"sigs.k8s.io/yaml"

	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

var none = new(emptypb.Empty)

var settingsCases = []assertion{
	{"Version is semantic and new enough for every peer", func(s *site) {
		got, err := s.client.Version(s.ctx, none)
		s.must(err)
		if got.GetName() == "" || got.GetVersion() < "v2.21.0" || got.GetVersion() >= "v3" {
			s.Errorf("%v", got)
		}
	}},
	{"GetAgentImageFQN without an injector", func(s *site) {
		_, err := s.client.GetAgentImageFQN(s.ctx, none)
		s.wants(err, codes.Unavailable, "")
	}},
	{"GetTelepresenceAPI is off", func(s *site) {
		got, err := s.client.GetTelepresenceAPI(s.ctx, none)
		s.must(err)
		if got.GetPort() != 0 {
			s.Errorf("port %d", got.GetPort())
		}
	}},
	{"GetKnownWorkloadKinds in their order, without a look at the session", func(s *site) {
		for _, sess := range []*manager.SessionInfo{s.arrive(), nobody("none"), nobody("")} {
			got, err := s.client.GetKnownWorkloadKinds(s.ctx, sess)
			s.must(err)
			same(s, []manager.WorkloadInfo_Kind{
				manager.WorkloadInfo_DEPLOYMENT, manager.WorkloadInfo_REPLICASET, manager.WorkloadInfo_STATEFULSET, manager.WorkloadInfo_ROLLOUT,
			}, got.GetKinds())
		}
	}},
	{"GetClientConfig needs no session", func(s *site) {
		got, err := s.client.GetClientConfig(s.ctx, none)
		s.must(err)
		var any map[string]any
		if err := yaml.Unmarshal(got.GetConfigYaml(), &any); err != nil {
			s.Error(err)
		}
	}},
	{"GetLogs is deprecated", func(s *site) {
		got, err := s.client.GetLogs(s.ctx, new(manager.GetLogsRequest))
		s.must(err)
		if got.GetErrMsg() == "" || len(got.GetPodLogs()) != 0 || len(got.GetPodYaml()) != 0 {
			s.Errorf("%v", got)
		}
	}},
	{"GetLicense, CanConnectAmbassadorCloud, GetCloudConfig and UpdateIntercept are not there", func(s *site) {
		_, err := s.client.GetLicense(s.ctx, none)
		s.wants(err, codes.Unimplemented, "")
		_, err = s.client.CanConnectAmbassadorCloud(s.ctx, none)
		s.wants(err, codes.Unimplemented, "")
		_, err = s.client.GetCloudConfig(s.ctx, none)
		s.wants(err, codes.Unimplemented, "")
		_, err = s.client.UpdateIntercept(s.ctx, new(manager.UpdateInterceptRequest))
		s.wants(err, codes.Unimplemented, "")
	}},
	{"GetAgentConfig is what an older agent starts with", func(s *site) {
		got, err := s.client.GetAgentConfig(s.ctx, &manager.AgentConfigRequest{Session: s.arrive(), Name: "web"})
		s.must(err)
		var sidecar struct {
			AgentName, Namespace, WorkloadName, WorkloadKind, ManagerHost string
			ManagerPort                                                   int
			Containers                                                    []struct {
				Name, EnvPrefix, MountPoint string
				Intercepts                  []struct {
					ContainerPortName, ServicePortName, Protocol string
					ContainerPort, AgentPort                     int
				}
			}
		}
		s.must(yaml.Unmarshal(got.GetData(), &sidecar))
		if sidecar.AgentName != "web" || sidecar.Namespace != s.ns || sidecar.WorkloadName != "web" || sidecar.WorkloadKind != kind ||
			sidecar.ManagerHost == "" || sidecar.ManagerPort == 0 || len(sidecar.Containers) != 1 || len(sidecar.Containers[0].Intercepts) != 3 {
			s.Fatalf("%s", got.GetData())
		}
		if c := sidecar.Containers[0]; c.Name != "app" || c.EnvPrefix != "A_" || c.MountPoint == "" || c.Intercepts[0].ContainerPortName != "http" ||
			c.Intercepts[0].ContainerPort != 8080 || c.Intercepts[0].Protocol != "TCP" || c.Intercepts[0].AgentPort == c.Intercepts[1].AgentPort {
			s.Errorf("%s", got.GetData())
		}
	}},
	{"GetAgentConfig of an unknown session", func(s *site) {
		_, err := s.client.GetAgentConfig(s.ctx, &manager.AgentConfigRequest{Session: nobody("none"), Name: "web"})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"GetAgentConfig of an unknown workload", func(s *site) {
		_, err := s.client.GetAgentConfig(s.ctx, &manager.AgentConfigRequest{Session: s.arrive(), Name: "none", Namespace: "nowhere"})
		s.wants(err, codes.NotFound, "Workload none.nowhere not found")
	}},
	{"EnsureAgent of an unknown session", func(s *site) {
		_, err := s.client.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: nobody("none"), Name: "web"})
		s.wants(err, codes.NotFound, `session "none" not found`)
	}},
	{"EnsureAgent answers the agents by the names of their pods", func(s *site) {
		for _, n := range []int{2, 0, 1} {
			s.arriveAgent(s.newerAgent("web", n))
		}
		got, err := s.client.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: s.arrive(), Name: "web"})
		s.must(err)
		if len(got.GetAgents()) != 3 {
			s.Fatalf("%d agents", len(got.GetAgents()))
		}
		for n, a := range got.GetAgents() {
			if a.GetPodName() != podName("web", n) {
				s.Errorf("agent %d is that of %s", n, a.GetPodName())
			}
		}
	}},
	{"EnsureAgent waits for the agents", func(s *site) {
		type result struct {
			got *manager.AgentInfoSnapshot
			err error
		}
		done := make(chan result, 1)
		sess := s.arrive()
		go func() {
			got, err := s.client.EnsureAgent(s.ctx, &manager.EnsureAgentRequest{Session: sess, Name: "db", Namespace: s.ns})
			done <- result{got, err}
		}()
		s.arriveAgent(s.olderAgent("db", 0))
		r := <-done
		s.must(r.err)
		if len(r.got.GetAgents()) != 1 {
			s.Errorf("%d agents", len(r.got.GetAgents()))
		}
	}},
	{"the health service says SERVING", func(s *site) {
		got, err := healthpb.NewHealthClient(s.nodeConn()).Check(s.ctx, new(healthpb.HealthCheckRequest))
		s.must(err)
		if got.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			s.Error(got.GetStatus())
		}
	}},
	{"variables that are excluded never leave the pod", func(s *site) {
		const secret = "CONTRACT_TEST_SECRET"
		op := operatorsvc.NewOperatorClient(s.w.conn(s, s.at, pki.RoleOperator, s.user("operator")))
		_, err := op.PutConfig(s.ctx, &operatorv1.PutConfigRequest{Key: "telepresence/excluded-environment", Value: []byte(secret + "\n")})
		s.must(err)
		sc := s.scene(s.newerAgent("web", 0))
		made := s.create(sc.sess, s.spec("one", "web"))
		_, err = s.node.ReviewIntercept(s.ctx, &manager.ReviewInterceptRequest{
			Session: sc.agent, Id: made.GetId(), Disposition: manager.InterceptDispositionType_ACTIVE,
			Environment: map[string]string{secret: "x", "COLOUR": "blue"},
		})
		s.must(err)
		got, err := s.client.GetIntercept(s.ctx, &manager.GetInterceptRequest{Name: made.GetId()})
		s.must(err)
		same(s, map[string]string{"COLOUR": "blue"}, got.GetEnvironment())
	}},
	{"ReportMetrics is always OK", func(s *site) {
		for _, id := range []string{s.arrive().GetSessionId(), "none", ""} {
			_, err := s.node.ReportMetrics(s.ctx, &manager.TunnelMetrics{ClientSessionId: id, IngressBytes: 1, EgressBytes: 2})
			s.must(err)
		}
	}},
}

var logLevelCases = []assertion{
	{"an unknown level", func(s *site) {
		_, err := s.client.SetLogLevel(s.ctx, &manager.LogLevelRequest{LogLevel: "loud"})
		s.wantsCode(err, codes.InvalidArgument)
	}},
	{"a level reaches agents through every server, and its end too", func(s *site) {
		streams := make([]interface {
			Recv() (*manager.LogLevelRequest, error)
		}, 3)
		for server := range 3 {
			m := s.nodeAt(server)
			stream, err := m.WatchLogLevel(s.ctx, none)
			s.must(err)
			_, err = stream.Header()
			s.must(err)
			streams[server] = stream
		}
		levels.Lock()
		defer levels.Unlock()
		set := func(level string, d time.Duration) {
			s.Helper()
			_, err := s.client.SetLogLevel(s.ctx, &manager.LogLevelRequest{LogLevel: level, Duration: durationpb.New(d)})
			s.must(err)
			for _, stream := range streams {
				for {
					m, err := stream.Recv()
					s.must(err)
					if m.GetLogLevel() != level {
						continue // another case's
					}
					if left := m.GetDuration().AsDuration(); d > 0 && (left <= 0 || left > d) {
						s.Errorf("%s for %s", level, left)
					}
					break
				}
			}
		}
		set("trace", time.Hour)
		set("warn", time.Minute)
		set("", 0)
	}},
}
