package clienttest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
	"trivet/tunnel"
)

// managerService is telepresence.manager.Manager at one server.
type managerService struct {
	managersvc.UnimplementedManagerServer
	s *Server
	f *Manager
}

func (m *managerService) session(info *manager.SessionInfo) error {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if m.f.Sessions[info.GetSessionId()] == nil {
		return errs.New(codes.NotFound, "SESSION_NOT_FOUND", "Session %q not found", info.GetSessionId())
	}
	return nil
}

func (m *managerService) ArriveAsClient(_ context.Context, c *manager.ClientInfo) (*manager.SessionInfo, error) {
	var id string
	m.f.Change(func() {
		m.f.nextID++
		id = fmt.Sprintf("session-%d", m.f.nextID)
		m.f.Sessions[id] = c
	})
	return &manager.SessionInfo{SessionId: id}, nil
}

func (m *managerService) ReconnectClient(_ context.Context, r *manager.ReconnectClientRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, m.session(r.GetSession())
}

func (m *managerService) Remain(_ context.Context, r *manager.RemainRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, m.session(r.GetSession())
}

func (m *managerService) Depart(_ context.Context, i *manager.SessionInfo) (*emptypb.Empty, error) {
	m.f.Change(func() { delete(m.f.Sessions, i.GetSessionId()) })
	return &emptypb.Empty{}, nil
}

func (m *managerService) EnsureAgent(context.Context, *manager.EnsureAgentRequest) (*manager.AgentInfoSnapshot, error) {
	return &manager.AgentInfoSnapshot{}, nil
}

func (m *managerService) PrepareIntercept(context.Context, *manager.CreateInterceptRequest) (*manager.PreparedIntercept, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	return m.f.Prepared, nil
}

func (m *managerService) CreateIntercept(_ context.Context, r *manager.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	if err := m.session(r.GetSession()); err != nil {
		return nil, err
	}
	id := r.GetSession().GetSessionId() + ":" + r.GetInterceptSpec().GetName()
	info := &manager.InterceptInfo{
		Id: id, Spec: r.GetInterceptSpec(), ClientSession: r.GetSession(), ModifiedAt: timestamppb.Now(),
	}
	m.f.Change(func() {
		info.Disposition, info.Environment = m.f.Disposition, m.f.Environment
		m.f.Intercepts[id] = info
	})
	return info, nil
}

func (m *managerService) RemoveIntercept(_ context.Context, r *manager.RemoveInterceptRequest2) (*emptypb.Empty, error) {
	m.f.Change(func() { delete(m.f.Intercepts, r.GetSession().GetSessionId()+":"+r.GetName()) })
	return &emptypb.Empty{}, nil
}

func (m *managerService) GetIntercept(_ context.Context, r *manager.GetInterceptRequest) (*manager.InterceptInfo, error) {
	m.f.mu.Lock()
	defer m.f.mu.Unlock()
	if info := m.f.Intercepts[r.GetSession().GetSessionId()+":"+r.GetName()]; info != nil {
		return info, nil
	}
	return nil, errs.New(codes.NotFound, "INTERCEPT_NOT_FOUND", "Intercept named %q not found", r.GetName())
}

func (m *managerService) WatchIntercepts(info *manager.SessionInfo, stream managersvc.Manager_WatchInterceptsServer) error {
	for {
		if err := m.session(info); err != nil {
			return nil // the session has ended
		}
		m.f.mu.Lock()
		changed := m.f.changed
		snapshot := &manager.InterceptInfoSnapshot{}
		for _, i := range m.f.Intercepts {
			snapshot.Intercepts = append(snapshot.Intercepts, i)
		}
		m.f.mu.Unlock()
		if err := stream.Send(snapshot); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (m *managerService) WatchDial(_ *manager.SessionInfo, stream managersvc.Manager_WatchDialServer) error {
	for {
		select {
		case r := <-m.f.dials[m.s.Name]:
			if err := stream.Send(r); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (m *managerService) Tunnel(stream managersvc.Manager_TunnelServer) error {
	info, err := tunnel.Accept(stream)
	if err != nil {
		return errs.Status(err)
	}
	t := &Tunnel{Info: info, Stream: stream, End: make(chan error, 1)}
	m.f.Tunnels <- t
	select {
	case err := <-t.End:
		return errs.Status(err)
	case <-stream.Context().Done():
		return nil
	}
}

// operatorService is trivet.operator.v1.Operator at one server.
type operatorService struct {
	operatorsvc.UnimplementedOperatorServer
	s *Server
	f *Manager
}

func (o *operatorService) Status(context.Context, *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	st := proto.CloneOf(&o.f.Status)
	st.Server = o.s.Name
	return st, nil
}

func (o *operatorService) ListSessions(context.Context, *operatorv1.ListSessionsRequest) (*operatorv1.ListSessionsResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return &operatorv1.ListSessionsResponse{Sessions: o.f.Clients, Revision: o.f.Status.GetRevision()}, nil
}

func (o *operatorService) ListNodes(context.Context, *operatorv1.ListNodesRequest) (*operatorv1.ListNodesResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return &operatorv1.ListNodesResponse{Nodes: o.f.Nodes, Revision: o.f.Status.GetRevision()}, nil
}

func (o *operatorService) ListWorkloads(
	_ context.Context, r *operatorv1.ListWorkloadsRequest,
) (*operatorv1.ListWorkloadsResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	out := &operatorv1.ListWorkloadsResponse{Revision: o.f.Status.GetRevision()}
	for _, w := range o.f.Workloads {
		if r.GetNamespace() == "" || r.GetNamespace() == w.GetNamespace() {
			out.Workloads = append(out.Workloads, w)
		}
	}
	return out, nil
}

func (o *operatorService) intercepts(namespace string) []*operatorv1.Intercept {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	var out []*operatorv1.Intercept
	for _, i := range o.f.Intercepts {
		spec := i.GetSpec()
		if namespace != "" && namespace != spec.GetNamespace() {
			continue
		}
		out = append(out, &operatorv1.Intercept{
			Id: i.GetId(), Name: spec.GetName(), Workload: spec.GetAgent(), Namespace: spec.GetNamespace(),
			Client: spec.GetClient(), ClientSessionId: i.GetClientSession().GetSessionId(),
			Disposition: i.GetDisposition().String(), OwnerState: "PRESENT", Message: i.GetMessage(),
			ContainerPort: spec.GetContainerPort(), ServicePortName: spec.GetServicePortName(),
			TargetHost: spec.GetTargetHost(), TargetPort: spec.GetTargetPort(), CreatedAt: i.GetModifiedAt(),
			ModifyRevision: o.f.Status.GetRevision(),
		})
	}
	slices.SortFunc(out, func(a, b *operatorv1.Intercept) int { return strings.Compare(a.GetId(), b.GetId()) })
	return out
}

func (o *operatorService) ListIntercepts(
	_ context.Context, r *operatorv1.ListInterceptsRequest,
) (*operatorv1.ListInterceptsResponse, error) {
	return &operatorv1.ListInterceptsResponse{Intercepts: o.intercepts(r.GetNamespace()), Revision: o.f.Status.GetRevision()}, nil
}

func (o *operatorService) GetIntercept(_ context.Context, r *operatorv1.GetInterceptRequest) (*operatorv1.Intercept, error) {
	for _, i := range o.intercepts("") {
		if i.GetName() == r.GetName() || i.GetId() == r.GetName() {
			return i, nil
		}
	}
	return nil, errs.New(codes.NotFound, "INTERCEPT_NOT_FOUND", "intercept %q not found", r.GetName()).
		WithHint("trivet intercept list shows what there is")
}

func (o *operatorService) CreateIntercept(ctx context.Context, r *operatorv1.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	return (&managerService{s: o.s, f: o.f}).CreateIntercept(ctx, r.GetRequest())
}

func (o *operatorService) DeleteIntercept(
	_ context.Context, r *operatorv1.DeleteInterceptRequest,
) (*operatorv1.DeleteInterceptResponse, error) {
	o.f.Change(func() { delete(o.f.Intercepts, r.GetId()) })
	return &operatorv1.DeleteInterceptResponse{Revision: o.f.Status.GetRevision() + 1}, nil
}

func (o *operatorService) Digest(context.Context, *operatorv1.DigestRequest) (*operatorv1.DigestResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return o.f.Digests[o.s.Name], nil
}

func (o *operatorService) Health(context.Context, *operatorv1.HealthRequest) (*operatorv1.HealthResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return o.f.Health[o.s.Name], nil
}

func (o *operatorService) Collect(_ *operatorv1.CollectRequest, stream grpc.ServerStreamingServer[operatorv1.CollectResponse]) error {
	o.f.mu.Lock()
	parts := o.f.Support
	o.f.mu.Unlock()
	for _, p := range parts {
		if err := stream.Send(p); err != nil {
			return err
		}
	}
	return nil
}

func (o *operatorService) ListPeers(context.Context, *operatorv1.ListPeersRequest) (*operatorv1.ListPeersResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return &operatorv1.ListPeersResponse{Peers: o.f.Peers, Term: o.f.Status.GetTerm()}, nil
}

func (o *operatorService) TransferLeadership(
	_ context.Context, r *operatorv1.TransferLeadershipRequest,
) (*operatorv1.TransferLeadershipResponse, error) {
	return &operatorv1.TransferLeadershipResponse{From: o.s.Name, Leader: r.GetTo()}, nil
}
