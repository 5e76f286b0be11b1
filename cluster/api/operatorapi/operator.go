// Package operatorapi serves trivet.operator.v1.Operator: what operators and
// the command line see and change.
//
// Clients see and remove only what is theirs; operators and viewers see
// everything, without secrets.
package operatorapi

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/cluster/api/nodeapi"
	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Core is what the handlers need of the engine.
type Core interface {
	Propose(ctx context.Context, identity string, req *engine.Request, cmd *commandv1.Command) (*commandv1.Result, error)
	Read(ctx context.Context, level engine.Level, seen uint64) (*fsm.Root, error)
	Root() *fsm.Root
}

// Cluster is what the handlers need to know of the servers.
type Cluster interface {
	// Servers lists the voters as this server sees them.
	Servers(ctx context.Context) ([]*operatorv1.Server, error)
	// Self names this server.
	Self() string
	// Version is the build's version.
	Version() string
	// Ready says whether this server is in contact with a leader.
	Ready() bool
	Term() uint64
	// LeaderName is empty when no leader is known.
	LeaderName() string
	// NameOf turns a server id into its name.
	NameOf(id string) string
	// Transfer hands leadership to a server by name or id (empty: any) and
	// returns the names of the old and the new leader.
	Transfer(ctx context.Context, to string) (from, leader string, err error)
}

// Creator makes intercepts; the manager service does.
type Creator interface {
	Create(ctx context.Context, req *manager.CreateInterceptRequest, force bool, lease time.Duration) (*manager.InterceptInfo, error)
}

// Config of a Service.
type Config struct {
	Core    Core
	Cluster Cluster
	Creator Creator
	View    *attach.View
}

// Service is the operator service.
type Service struct {
	operatorsvc.UnimplementedOperatorServer
	cfg Config
}

// New makes the service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

func (s *Service) read(ctx context.Context) (*fsm.Root, error) {
	level, seen, err := engine.ReadOptions(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Read(ctx, level, seen)
}

func (s *Service) propose(ctx context.Context, cmd *commandv1.Command) (*commandv1.Result, error) {
	req, err := engine.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Propose(ctx, authz.Caller(ctx).String(), req, cmd)
}

func all(id pki.ID) bool { return id.Role == pki.RoleOperator || id.Role == pki.RoleViewer }

// Status never needs a leader: it is what one looks at when there is none.
func (s *Service) Status(ctx context.Context, _ *operatorv1.StatusRequest) (*operatorv1.StatusResponse, error) {
	root := s.cfg.Core.Root()
	servers, err := s.cfg.Cluster.Servers(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.StatusResponse{
		ClusterId: root.Meta().GetClusterId(), Server: s.cfg.Cluster.Self(), Version: s.cfg.Cluster.Version(),
		Leader: s.cfg.Cluster.LeaderName(), Term: s.cfg.Cluster.Term(), Revision: root.Revision(), Servers: servers,
		Ready: s.cfg.Cluster.Ready(),
	}
	for row := range root.Sessions {
		if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
			out.Agents++
		} else {
			out.Clients++
		}
	}
	for range root.Intercepts {
		out.Intercepts++
	}
	for range root.Nodes {
		out.Nodes++
	}
	for range root.Workloads {
		out.Workloads++
	}
	return out, nil
}

// ListSessions lists all sessions.
func (s *Service) ListSessions(ctx context.Context, _ *operatorv1.ListSessionsRequest) (*operatorv1.ListSessionsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListSessionsResponse{Revision: root.Revision()}
	for row := range root.Sessions {
		x := &operatorv1.Session{Id: row.GetId(), Kind: "client", Identity: row.GetIdentity(), CreatedAt: stamp(row.GetCreatedAt())}
		if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
			a := row.GetAgent()
			x.Kind, x.Name, x.Namespace, x.PodName, x.Version = "agent", a.GetName(), a.GetNamespace(), a.GetPodName(), a.GetVersion()
		} else {
			c := row.GetClient()
			x.Name, x.Namespace, x.Version = c.GetName(), c.GetNamespace(), c.GetVersion()
		}
		for _, id := range s.cfg.View.Servers(row.GetId()) {
			x.Attached = append(x.Attached, s.cfg.Cluster.NameOf(id))
		}
		slices.Sort(x.Attached)
		out.Sessions = append(out.Sessions, x)
	}
	return out, nil
}

// ListIntercepts lists what the caller may see.
func (s *Service) ListIntercepts(ctx context.Context, req *operatorv1.ListInterceptsRequest) (*operatorv1.ListInterceptsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	me := authz.Caller(ctx)
	out := &operatorv1.ListInterceptsResponse{Revision: root.Revision()}
	for row := range root.Intercepts {
		own := row.GetIdentity() == me.String()
		if (req.GetOwn() || !all(me)) && !own {
			continue
		}
		if ns := req.GetNamespace(); ns != "" && row.GetSpec().GetNamespace() != ns {
			continue
		}
		out.Intercepts = append(out.Intercepts, intercept(row))
	}
	return out, nil
}

// GetIntercept finds an intercept by id, or by its name when only one of those
// that the caller may see has it.
func (s *Service) GetIntercept(ctx context.Context, req *operatorv1.GetInterceptRequest) (*operatorv1.Intercept, error) {
	if req.GetName() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "name must not be empty")
	}
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	me := authz.Caller(ctx)
	var found []*commandv1.InterceptRow
	for row := range root.Intercepts {
		if !all(me) && row.GetIdentity() != me.String() {
			continue
		}
		if row.GetId() == req.GetName() {
			return intercept(row), nil
		}
		if row.GetSpec().GetName() == req.GetName() {
			found = append(found, row)
		}
	}
	switch len(found) {
	case 1:
		return intercept(found[0]), nil
	case 0:
		return nil, errs.New(codes.NotFound, "INTERCEPT_NOT_FOUND", "intercept %q not found", req.GetName()).
			WithHint("`trivet intercept list` shows what is there")
	}
	ids := make([]string, 0, len(found))
	for _, row := range found {
		ids = append(ids, row.GetId())
	}
	return nil, errs.New(codes.FailedPrecondition, "AMBIGUOUS_NAME", "%d intercepts are named %q", len(found), req.GetName()).
		WithHint("use one of the ids %s", strings.Join(ids, ", "))
}

// CreateIntercept is the published rpc with force and lease.
func (s *Service) CreateIntercept(ctx context.Context, req *operatorv1.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	if req.GetLease() < 0 {
		return nil, errs.New(codes.InvalidArgument, "BAD_LEASE", "lease %s is negative", time.Duration(req.GetLease()))
	}
	return s.cfg.Creator.Create(ctx, req.GetRequest(), req.GetForce(), time.Duration(req.GetLease()))
}

// DeleteIntercept removes an intercept by id; an operator may remove anybody's.
func (s *Service) DeleteIntercept(ctx context.Context, req *operatorv1.DeleteInterceptRequest) (*operatorv1.DeleteInterceptResponse, error) {
	if req.GetId() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "id must not be empty")
	}
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{
		RemoveIntercept: &commandv1.RemoveIntercept{Id: req.GetId()},
	}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.DeleteInterceptResponse{Revision: res.GetRevision()}, nil
}

func intercept(row *commandv1.InterceptRow) *operatorv1.Intercept {
	spec := row.GetSpec()
	return &operatorv1.Intercept{
		Id: row.GetId(), Name: spec.GetName(), Workload: spec.GetAgent(), Namespace: spec.GetNamespace(), Client: spec.GetClient(),
		ClientSessionId: row.GetSessionId(), Identity: row.GetIdentity(), Disposition: row.GetDisposition().String(),
		OwnerState: strings.TrimPrefix(row.GetOwnerState().String(), "OWNER_STATE_"), Message: row.GetMessage(),
		PodName: row.GetPodName(), PodIp: row.GetPodIp(), ContainerPort: spec.GetContainerPort(),
		TargetHost: spec.GetTargetHost(), TargetPort: spec.GetTargetPort(), ServicePortName: spec.GetServicePortName(),
		CreatedAt: stamp(row.GetCreatedAt()), ModifiedAt: stamp(row.GetModifiedAt()), LeaseUntil: stamp(row.GetLeaseUntil()),
		ModifyRevision: row.GetModifyRevision(),
	}
}

func stamp(unixNano int64) *timestamppb.Timestamp {
	if unixNano == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, unixNano))
}

// ListNodes lists the nodes that have ever reported.
func (s *Service) ListNodes(ctx context.Context, _ *operatorv1.ListNodesRequest) (*operatorv1.ListNodesResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListNodesResponse{Revision: root.Revision()}
	byName := make(map[string]*operatorv1.Node)
	for row := range root.Nodes {
		n := &operatorv1.Node{
			Name: row.GetName(), Version: row.GetVersion(), StealBackend: row.GetStealBackend(), StealReason: row.GetStealReason(),
			Kernel: row.GetKernel(), BootId: row.GetBootId(), ReportedAt: stamp(row.GetReportedAt()),
			Connected: len(s.cfg.View.Servers(nodeapi.AttachmentID(row.GetName()))) > 0,
		}
		byName[n.GetName()] = n
		out.Nodes = append(out.Nodes, n)
	}
	for w := range root.Workloads {
		seen := make(map[string]bool)
		for _, p := range w.GetPods() {
			n := byName[p.GetNode()]
			if n == nil {
				continue
			}
			n.Pods++
			if !seen[p.GetNode()] {
				seen[p.GetNode()] = true
				n.Workloads++
			}
		}
	}
	return out, nil
}

// ListWorkloads lists what the nodes reported.
func (s *Service) ListWorkloads(ctx context.Context, req *operatorv1.ListWorkloadsRequest) (*operatorv1.ListWorkloadsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListWorkloadsResponse{Revision: root.Revision()}
	for w := range root.Workloads {
		if ns := req.GetNamespace(); ns != "" && ns != w.GetNamespace() {
			continue
		}
		out.Workloads = append(out.Workloads, workload(root, w))
	}
	return out, nil
}

func workload(root *fsm.Root, w *commandv1.WorkloadRow) *operatorv1.Workload {
	x := &operatorv1.Workload{Namespace: w.GetNamespace(), Name: w.GetName(), Kind: w.GetKind(), Pods: uint32(len(w.GetPods()))}
	for range root.AgentsOf(w.GetNamespace(), w.GetName()) {
		x.Agents++
	}
	seen := make(map[string]bool)
	for _, p := range w.GetPods() {
		if !slices.Contains(x.Nodes, p.GetNode()) {
			x.Nodes = append(x.Nodes, p.GetNode())
		}
		for _, c := range p.GetContainers() {
			for _, port := range c.GetPorts() {
				key := c.GetName() + "/" + port.GetName() + "/" + port.GetProtocol()
				if !seen[key] {
					seen[key] = true
					x.Ports = append(x.Ports, &operatorv1.Port{Name: port.GetName(), Port: port.GetPort(), Protocol: port.GetProtocol(), Container: c.GetName()})
				}
			}
		}
	}
	for row := range root.InterceptsFor(w.GetNamespace(), w.GetName()) {
		if row.GetDisposition() == manager.InterceptDispositionType_ACTIVE && !slices.Contains(x.InterceptedBy, row.GetSpec().GetClient()) {
			x.InterceptedBy = append(x.InterceptedBy, row.GetSpec().GetClient())
		}
	}
	return x
}

// PutConfig writes one key.
func (s *Service) PutConfig(ctx context.Context, req *operatorv1.PutConfigRequest) (*operatorv1.PutConfigResponse, error) {
	res, err := s.propose(ctx, putConfig(req))
	if err != nil {
		return nil, err
	}
	return &operatorv1.PutConfigResponse{Revision: res.GetRevision()}, nil
}

func putConfig(req *operatorv1.PutConfigRequest) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{
		Key: req.GetKey(), Value: req.GetValue(), IfModifyRevision: req.IfModifyRevision,
	}}}
}

// streamInFlight bounds the writes of one PutConfigStream that are under way;
// beyond it the stream is not read.
const streamInFlight = 128

// PutConfigStream writes many keys; answers come in the order of requests. A
// refused write ends the stream.
func (s *Service) PutConfigStream(stream grpc.BidiStreamingServer[operatorv1.PutConfigRequest, operatorv1.PutConfigResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	type answer struct {
		rev uint64
		err error
	}
	pending := make(chan chan answer, streamInFlight)
	received := make(chan error, 1)
	identity := authz.Caller(ctx).String()
	go func() {
		defer close(pending)
		for {
			req, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			ch := make(chan answer, 1)
			select {
			case pending <- ch:
			case <-ctx.Done():
				received <- ctx.Err()
				return
			}
			go func() {
				res, err := s.cfg.Core.Propose(ctx, identity, nil, putConfig(req))
				ch <- answer{res.GetRevision(), err}
			}()
		}
	}()
	for ch := range pending {
		a := <-ch
		if a.err != nil {
			return a.err
		}
		if err := stream.Send(&operatorv1.PutConfigResponse{Revision: a.rev}); err != nil {
			return err
		}
	}
	if err := <-received; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// GetConfig reads one key.
func (s *Service) GetConfig(ctx context.Context, req *operatorv1.GetConfigRequest) (*operatorv1.GetConfigResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	row, ok := root.Config(req.GetKey())
	if !ok {
		return nil, errs.New(codes.NotFound, "CONFIG_NOT_FOUND", "config key %q not found", req.GetKey())
	}
	return &operatorv1.GetConfigResponse{Key: row.GetKey(), Value: row.GetValue(), ModifyRevision: row.GetModifyRevision(), Revision: root.Revision()}, nil
}

// Digest is the digest of this server's own state, at its own revision. With a
// revision in the metadata it waits for that one.
func (s *Service) Digest(ctx context.Context, _ *operatorv1.DigestRequest) (*operatorv1.DigestResponse, error) {
	level, seen, err := engine.ReadOptions(ctx)
	if err != nil {
		return nil, err
	}
	if level == engine.Default && seen == 0 {
		level = engine.Stale
	}
	root, err := s.cfg.Core.Read(ctx, level, seen)
	if err != nil {
		return nil, err
	}
	sum := root.Digest()
	return &operatorv1.DigestResponse{Server: s.cfg.Cluster.Self(), Revision: root.Revision(), Schema: fsm.SchemaVersion, Digest: sum[:]}, nil
}

// ListPeers lists the Raft configuration.
func (s *Service) ListPeers(ctx context.Context, _ *operatorv1.ListPeersRequest) (*operatorv1.ListPeersResponse, error) {
	servers, err := s.cfg.Cluster.Servers(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListPeersResponse{Term: s.cfg.Cluster.Term()}
	for _, x := range servers {
		out.Peers = append(out.Peers, &operatorv1.Peer{Id: x.GetId(), Name: x.GetName(), Address: x.GetAddress(), Leader: x.GetLeader(), Voter: x.GetVoter()})
	}
	return out, nil
}

// TransferLeadership hands leadership over.
func (s *Service) TransferLeadership(ctx context.Context, req *operatorv1.TransferLeadershipRequest) (*operatorv1.TransferLeadershipResponse, error) {
	from, leader, err := s.cfg.Cluster.Transfer(ctx, req.GetTo())
	if err != nil {
		return nil, err
	}
	return &operatorv1.TransferLeadershipResponse{From: from, Leader: leader}, nil
}
