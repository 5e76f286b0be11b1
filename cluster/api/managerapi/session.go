package managerapi

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Version answers without a session.
func (s *Service) Version(context.Context, *emptypb.Empty) (*manager.VersionInfo2, error) {
	return &manager.VersionInfo2{Name: "trivet", Version: contractVersion}, nil
}

// ArriveAsClient starts a client session.
func (s *Service) ArriveAsClient(ctx context.Context, info *manager.ClientInfo) (*manager.SessionInfo, error) {
	if err := managed(ctx, info.GetNamespace()); err != nil {
		return nil, err
	}
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_ArriveClient{
		ArriveClient: &commandv1.ArriveClient{Info: info, Compat: authz.Confined(ctx) != nil},
	}})
	if err != nil {
		return nil, err
	}
	out := s.sessionInfo(res.GetSession().GetId())
	if id := info.GetInstallId(); id != "" {
		out.InstallId = &id
	}
	return out, nil
}

// ArriveAsAgent starts an agent session, or returns the one that this pod has.
func (s *Service) ArriveAsAgent(ctx context.Context, info *manager.AgentInfo) (*manager.SessionInfo, error) {
	return s.arriveAgent(ctx, info, "")
}

// arriveAgent is ArriveAsAgent, under a session id that the agent had if there
// is one.
func (s *Service) arriveAgent(ctx context.Context, info *manager.AgentInfo, id string) (*manager.SessionInfo, error) {
	if err := s.mayBeAgent(ctx, info); err != nil {
		return nil, err
	}
	info.Environment = s.withoutExcluded(info.GetEnvironment())
	for _, c := range info.GetContainers() {
		c.Environment = s.withoutExcluded(c.GetEnvironment())
	}
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_ArriveAgent{
		ArriveAgent: &commandv1.ArriveAgent{Info: info, SessionId: id, Compat: authz.Confined(ctx) != nil},
	}})
	if err != nil {
		return nil, err
	}
	if row := res.GetSession(); row.GetModifyRevision() != res.GetRevision() {
		// Nothing changed, so the leader has seen no sign of life yet.
		if _, err := s.touch(ctx, row.GetId(), zeroTime); err != nil {
			return nil, err
		}
	}
	return s.sessionInfo(res.GetSession().GetId()), nil
}

func (s *Service) sessionInfo(id string) *manager.SessionInfo {
	return &manager.SessionInfo{SessionId: id, ManagerInstallId: s.cfg.Core.Root().Meta().GetClusterId()}
}

// mayBeAgent: a node speaks only for pods that it reported, an agent only for
// the workload in its certificate.
func (s *Service) mayBeAgent(ctx context.Context, info *manager.AgentInfo) error {
	me := authz.Caller(ctx)
	// Missing fields get the state machine's answer, whose texts peers know.
	if info.GetName() == "" || info.GetNamespace() == "" {
		return nil
	}
	if authz.Confined(ctx) != nil {
		return s.mayBeConfinedAgent(ctx, info)
	}
	switch me.Role {
	case pki.RoleNode:
		if s.reported(s.cfg.Core.Root().Workload, me.Name, info) {
			return nil
		}
		root, err := s.cfg.Core.Read(ctx, engine.Linearizable, 0)
		if err != nil {
			return err
		}
		if s.reported(root.Workload, me.Name, info) {
			return nil
		}
		return errs.New(codes.PermissionDenied, "NOT_YOUR_POD", "node %s did not report pod %q of workload %s.%s",
			me.Name, info.GetPodUid(), info.GetName(), info.GetNamespace()).
			WithHint("a node may arrive as agent only for the pods in its workloads file")
	case pki.RoleAgent:
		if agentName(me.Name, info) {
			return nil
		}
	}
	return errs.New(codes.PermissionDenied, "NOT_YOUR_WORKLOAD", "%s may not arrive as agent of %s.%s", me, info.GetName(), info.GetNamespace())
}

func (s *Service) reported(workload func(ns, name string) (*commandv1.WorkloadRow, bool), node string, info *manager.AgentInfo) bool {
	row, ok := workload(info.GetNamespace(), info.GetName())
	return ok && slices.ContainsFunc(row.GetPods(), func(p *commandv1.Pod) bool {
		if p.GetNode() != node {
			return false
		}
		// Older agents do not know their pod's uid.
		if info.GetPodUid() == "" {
			return p.GetName() == info.GetPodName()
		}
		return p.GetUid() == info.GetPodUid()
	})
}

// ReconnectAgent resumes a session. One that has ended begins again under its
// id, as the contract has it: newer agents do not arrive a second time. The id
// must be the one that follows from the pod, for which the caller has to be
// allowed to speak; without a pod's uid the session stays unknown.
func (s *Service) ReconnectAgent(ctx context.Context, req *manager.ReconnectAgentRequest) (*emptypb.Empty, error) {
	row, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_AGENT)
	id, uid := req.GetSession().GetSessionId(), req.GetAgent().GetPodUid()
	if errs.Code(err) == codes.NotFound && uid != "" && id == agentSession+uid {
		_, err := s.arriveAgent(ctx, req.GetAgent(), id)
		return new(emptypb.Empty), err
	}
	if err != nil {
		return nil, err
	}
	return s.touch(ctx, row.GetId(), zeroTime)
}

// ReconnectClient resumes a known session. What the client claims about
// intercepts and agents is a hint at most; the state is here already.
func (s *Service) ReconnectClient(ctx context.Context, req *manager.ReconnectClientRequest) (*emptypb.Empty, error) {
	row, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	return s.touch(ctx, row.GetId(), zeroTime)
}

// Remain keeps a session alive. It is held while there is no leader: an error
// would make older peers tear themselves down.
func (s *Service) Remain(ctx context.Context, req *manager.RemainRequest) (*emptypb.Empty, error) {
	row, err := s.session(ctx, req.GetSession(), 0)
	if id := req.GetSession().GetSessionId(); errs.Code(err) == codes.NotFound || id == "" {
		return nil, unknownKeepalive(id)
	}
	if errs.Code(err) == codes.Unavailable {
		// Only a leader can tell an unknown session from a new one.
		return nil, held(req.GetSession().GetSessionId(), err)
	}
	if err != nil {
		return nil, err
	}
	if row.GetKind() != commandv1.SessionKind_SESSION_KIND_CLIENT {
		return s.touch(ctx, row.GetId(), zeroTime)
	}
	at := zeroTime
	if req.GetLastActivity().IsValid() {
		at = req.GetLastActivity().AsTime()
	}
	ctx, cancel := context.WithTimeout(ctx, clientHold)
	defer cancel()
	return s.touch(ctx, row.GetId(), at)
}

// clientHold is how long a client's keepalive is held. Published clients wait 15 s
// for an answer and end their session when there is none; agents wait for as
// long as it takes, and end theirs on any error.
const clientHold = 8 * time.Second

func (s *Service) touch(ctx context.Context, id string, lastActivity time.Time) (*emptypb.Empty, error) {
	err := s.cfg.Core.Touch(ctx, id, lastActivity)
	if errors.Is(err, engine.ErrUnknownSession) {
		// This server shows a state from before the session's end, or the leader's
		// table does not have it yet: a look that the leader confirms decides.
		root, readErr := s.cfg.Core.Read(ctx, engine.Linearizable, 0)
		if readErr != nil {
			return nil, held(id, readErr)
		}
		if _, ok := root.Session(id); !ok {
			return nil, unknownKeepalive(id)
		}
		err = s.cfg.Core.Touch(ctx, id, lastActivity)
	}
	if err != nil {
		return nil, held(id, err)
	}
	return new(emptypb.Empty), nil
}

// unknownKeepalive has the text of the published manager.
func unknownKeepalive(id string) error {
	return errs.New(codes.NotFound, "SESSION_NOT_FOUND", "Session %q not found", id).
		WithHint("the session has expired or departed; arrive again")
}

// held is the answer to a keepalive that had to be given up: of all codes,
// Aborted is the one after which published peers try again.
func held(id string, err error) error {
	return errs.New(codes.Aborted, "KEEPALIVE_HELD", "the keepalive of session %q did not reach a leader: %w", id, err).
		WithHint("send it again")
}

// Depart ends a session; an unknown one has ended already.
func (s *Service) Depart(ctx context.Context, info *manager.SessionInfo) (*emptypb.Empty, error) {
	if info.GetSessionId() == "" {
		return new(emptypb.Empty), nil
	}
	identity := authz.Caller(ctx).String()
	if authz.Confined(ctx) != nil {
		row, err := s.lookup(ctx, info.GetSessionId())
		switch {
		case err != nil:
			return nil, err
		case row == nil || owns(ctx, row) != nil:
			return new(emptypb.Empty), nil
		}
		identity = actor(ctx, row)
	}
	_, err := s.proposeAs(ctx, identity, &commandv1.Command{Op: &commandv1.Command_Depart{
		Depart: &commandv1.Depart{SessionId: info.GetSessionId()},
	}})
	return new(emptypb.Empty), err
}

// ReportMetrics takes the byte counts of a stream that an agent has finished.
// Reports for sessions that nobody knows are not counted.
func (s *Service) ReportMetrics(_ context.Context, m *manager.TunnelMetrics) (*emptypb.Empty, error) {
	if _, ok := s.cfg.Core.Root().Session(m.GetClientSessionId()); ok {
		s.reportedIn.Add(m.GetIngressBytes())
		s.reportedOut.Add(m.GetEgressBytes())
	}
	return new(emptypb.Empty), nil
}

// Reported returns the bytes that agents reported: visitor to workstation, and
// back.
func (s *Service) Reported() (ingress, egress uint64) {
	return s.reportedIn.Load(), s.reportedOut.Load()
}
