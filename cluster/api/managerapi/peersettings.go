package managerapi

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"sigs.k8s.io/yaml"

	"trivet/cluster/settings"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// GetClientConfig answers what the operators have written for clients; it needs
// no session.
func (s *Service) GetClientConfig(ctx context.Context, _ *emptypb.Empty) (*manager.CLIConfig, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	row, _ := root.Config(settings.KeyClientConfig)
	return &manager.CLIConfig{ConfigYaml: row.GetValue()}, nil
}

// GetTelepresenceAPI answers that agents serve no REST API.
func (s *Service) GetTelepresenceAPI(context.Context, *emptypb.Empty) (*manager.TelepresenceAPIInfo, error) {
	return new(manager.TelepresenceAPIInfo), nil
}

// GetAgentImageFQN answers as a manager without an injector does: agents are no
// images here, a node runs them.
func (s *Service) GetAgentImageFQN(context.Context, *emptypb.Empty) (*manager.AgentImageFQN, error) {
	return nil, status.Error(codes.Unavailable, "")
}

// GetKnownWorkloadKinds answers without looking at the session, as the
// published manager does.
func (s *Service) GetKnownWorkloadKinds(context.Context, *manager.SessionInfo) (*manager.KnownWorkloadKinds, error) {
	return &manager.KnownWorkloadKinds{Kinds: []manager.WorkloadInfo_Kind{
		manager.WorkloadInfo_DEPLOYMENT, manager.WorkloadInfo_REPLICASET, manager.WorkloadInfo_STATEFULSET, manager.WorkloadInfo_ROLLOUT,
	}}, nil
}

// GetLogs is deprecated in the contract and answers so.
func (s *Service) GetLogs(context.Context, *manager.GetLogsRequest) (*manager.LogsResponse, error) {
	return &manager.LogsResponse{
		PodLogs: map[string]string{}, PodYaml: map[string]string{},
		ErrMsg: "GetLogs is deprecated: take a support bundle with `trivet bundle`, or the logs from where the agents run",
	}, nil
}

// The rest of the older contract asked a company's cloud, which is not here.

// GetLicense is not implemented.
func (s *Service) GetLicense(context.Context, *emptypb.Empty) (*manager.License, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

// CanConnectAmbassadorCloud is not implemented.
func (s *Service) CanConnectAmbassadorCloud(context.Context, *emptypb.Empty) (*manager.AmbassadorCloudConnection, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

// GetCloudConfig is not implemented.
func (s *Service) GetCloudConfig(context.Context, *emptypb.Empty) (*manager.AmbassadorCloudConfig, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

// UpdateIntercept is not implemented: it changed previews of that cloud.
func (s *Service) UpdateIntercept(context.Context, *manager.UpdateInterceptRequest) (*manager.InterceptInfo, error) {
	return nil, status.Error(codes.Unimplemented, "")
}

// sidecar is the configuration of an agent as the published agents read it.
type sidecar struct {
	AgentName    string             `json:"agentName"`
	Namespace    string             `json:"namespace"`
	WorkloadName string             `json:"workloadName"`
	WorkloadKind string             `json:"workloadKind"`
	ManagerHost  string             `json:"managerHost,omitempty"`
	ManagerPort  int                `json:"managerPort,omitempty"`
	Containers   []sidecarContainer `json:"containers"`
}

type sidecarContainer struct {
	Name       string             `json:"name"`
	EnvPrefix  string             `json:"envPrefix"`
	MountPoint string             `json:"mountPoint"`
	Intercepts []sidecarIntercept `json:"intercepts"`
}

type sidecarIntercept struct {
	ContainerPortName string `json:"containerPortName,omitempty"`
	ServiceName       string `json:"serviceName,omitempty"`
	ServicePortName   string `json:"servicePortName,omitempty"`
	ServicePort       int32  `json:"servicePort,omitempty"`
	Protocol          string `json:"protocol"`
	ContainerPort     int32  `json:"containerPort"`
	AgentPort         int    `json:"agentPort"`
}

// Names and numbers of a published agent's configuration.
const (
	firstAgentPort  = 9900
	agentMountPoint = "/tel_app_mounts"
)

// GetAgentConfig makes the configuration with which a published agent would
// serve a workload.
func (s *Service) GetAgentConfig(ctx context.Context, req *manager.AgentConfigRequest) (*manager.AgentConfigResponse, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	ns := cmp.Or(req.GetNamespace(), sess.GetClient().GetNamespace())
	if err := managed(ctx, ns); err != nil {
		return nil, err
	}
	row, ok := root.Workload(ns, req.GetName())
	if !ok {
		return nil, workloadNotFound(ns, req.GetName())
	}
	raw, err := yaml.Marshal(s.sidecar(row))
	if err != nil {
		return nil, fmt.Errorf("write the agent's configuration: %w", err)
	}
	return &manager.AgentConfigResponse{Data: raw}, nil
}

func workloadNotFound(ns, name string) error {
	return errs.New(codes.NotFound, "WORKLOAD_NOT_FOUND", "Workload %s.%s not found", name, ns).
		WithHint("`trivet workload list` shows what is there")
}

func (s *Service) sidecar(row *commandv1.WorkloadRow) sidecar {
	out := sidecar{AgentName: row.GetName(), Namespace: row.GetNamespace(), WorkloadName: row.GetName(), WorkloadKind: row.GetKind()}
	if host, port, err := net.SplitHostPort(s.cfg.Address); err == nil {
		out.ManagerHost = host
		out.ManagerPort, _ = strconv.Atoi(port) // an address has a number there
	}
	if len(row.GetPods()) == 0 {
		return out
	}
	// The pods of a workload are alike.
	agentPort := firstAgentPort
	for i, c := range row.GetPods()[0].GetContainers() {
		sc := sidecarContainer{Name: c.GetName(), EnvPrefix: envPrefix(i), MountPoint: agentMountPoint + "/" + c.GetName()}
		for _, p := range c.GetPorts() {
			sc.Intercepts = append(sc.Intercepts, sidecarIntercept{
				ContainerPortName: p.GetName(), ServiceName: row.GetName(), ServicePortName: p.GetName(), ServicePort: p.GetPort(),
				Protocol: p.GetProtocol(), ContainerPort: p.GetPort(), AgentPort: agentPort,
			})
			agentPort++
		}
		out.Containers = append(out.Containers, sc)
	}
	return out
}

// envPrefix is "A_" for the first container, "B_" for the next.
func envPrefix(i int) string {
	if i < 26 {
		return string(rune('A'+i)) + "_"
	}
	return envPrefix(i/26 - 1)[:1] + envPrefix(i%26)
}
