package managerapi

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// Categories of PreparedIntercept.error_category, from the published contract.
const categoryUser = 1

// PrepareIntercept says how an intercept would come out, without making it.
// What the user has to correct comes back as text, not as a status.
func (s *Service) PrepareIntercept(ctx context.Context, req *manager.CreateInterceptRequest) (*manager.PreparedIntercept, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	spec := req.GetInterceptSpec()
	if err := requireSpec(spec); err != nil {
		return nil, err
	}
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) (*manager.PreparedIntercept, error) {
		return &manager.PreparedIntercept{Error: errs.New(codes.Unknown, "", format, args...).Error(), ErrorCategory: categoryUser}, nil
	}
	ns := spec.GetNamespace()
	if ns == "" {
		ns = sess.GetClient().GetNamespace()
	}
	if err := managed(ctx, ns); err != nil {
		return nil, err
	}
	workload, ok := root.Workload(ns, spec.GetAgent())
	if !ok {
		return refuse("workload %q not found in namespace %q; `trivet workload list` shows what is there", spec.GetAgent(), ns)
	}
	resolved, err := fsm.ResolveSpec(workload, spec)
	if err != nil {
		return refuse("%w", err)
	}
	resolved.Namespace = ns
	if _, res := root.CheckPolicy(sess.GetIdentity(), resolved); res != nil {
		return refuse("%s; %s", res.GetMessage(), res.GetHint())
	}
	if c := root.CheckConflict(resolved, sess.GetId()); c != nil {
		return refuse("%s", c.Message())
	}
	return &manager.PreparedIntercept{
		Namespace: ns, WorkloadKind: workload.GetKind(),
		ServiceName: workload.GetName(), ServicePortName: resolved.GetServicePortName(), ServicePort: resolved.GetContainerPort(),
		Protocol: resolved.GetProtocol(), ContainerName: resolved.GetContainerName(), ContainerPort: resolved.GetContainerPort(),
		PodPorts: resolved.GetPodPorts(),
	}, nil
}

// requireSpec: a request without a spec asks for nothing.
func requireSpec(spec *manager.InterceptSpec) error {
	if spec == nil {
		return missingSpec()
	}
	if spec.GetAgent() == "" {
		return errs.New(codes.InvalidArgument, "MISSING_FIELD", "agent must not be empty").WithHint("name the workload")
	}
	return nil
}

func missingSpec() error {
	return errs.New(codes.InvalidArgument, "MISSING_FIELD", "intercept_spec must not be empty")
}

// CreateIntercept makes an intercept after seeing that its workload has agents.
func (s *Service) CreateIntercept(ctx context.Context, req *manager.CreateInterceptRequest) (*manager.InterceptInfo, error) {
	return s.Create(ctx, req, false, 0)
}

// Create is CreateIntercept with what the published request has no field for.
func (s *Service) Create(ctx context.Context, req *manager.CreateInterceptRequest, force bool, lease time.Duration) (*manager.InterceptInfo, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	spec := req.GetInterceptSpec()
	if spec == nil {
		return nil, missingSpec()
	}
	// What else is missing the command says, in the order of the contract.
	if spec.GetNamespace() == "" && sess.GetClient().GetNamespace() != "" {
		spec.Namespace = sess.GetClient().GetNamespace()
	}
	if err := managed(ctx, spec.GetNamespace()); err != nil {
		return nil, err
	}
	if err := s.bringAgents(ctx, sess, spec.GetNamespace(), spec.GetAgent()); err != nil {
		return nil, err
	}
	res, err := s.proposeFor(ctx, sess, &commandv1.Command{Op: &commandv1.Command_CreateIntercept{
		CreateIntercept: &commandv1.CreateIntercept{SessionId: sess.GetId(), Spec: spec, Force: force, Lease: int64(lease)},
	}})
	if err != nil {
		return nil, err
	}
	return s.interceptInfo(res.GetIntercept(), fsm.AudienceOwner), nil
}

// bringAgents asks for agents and waits for the first one. A workload that
// nobody knows is left to the command to refuse; agents that do not come leave
// the intercept in NO_AGENT, which the contract allows.
func (s *Service) bringAgents(ctx context.Context, sess *commandv1.SessionRow, ns, name string) error {
	root := s.cfg.Core.Root()
	if _, ok := root.Workload(ns, name); !ok || haveAgents(root, ns, name) > 0 {
		return nil
	}
	_, err := s.cfg.Core.Propose(ctx, actor(ctx, sess), nil, &commandv1.Command{Op: &commandv1.Command_EnsureAgent{
		EnsureAgent: &commandv1.EnsureAgent{SessionId: sess.GetId(), Namespace: ns, Name: name},
	}})
	if err != nil {
		return err
	}
	wctx, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	if _, err := s.waitAgents(wctx, ns, name, func(have, _ int) bool { return have > 0 }); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return nil
}

func haveAgents(root *fsm.Root, ns, name string) int {
	n := 0
	for range root.AgentsOf(ns, name) {
		n++
	}
	return n
}

// waitAgents waits until enough says so of the number of agents and of pods.
func (s *Service) waitAgents(ctx context.Context, ns, name string, enough func(have, pods int) bool) (*fsm.Root, error) {
	cur := s.cfg.Core.WatchFrom(s.cfg.Core.Root())
	for {
		root := s.cfg.Core.Root()
		w, _ := root.Workload(ns, name)
		if enough(haveAgents(root, ns, name), len(w.GetPods())) {
			return root, nil
		}
		select {
		case <-cur.Wait():
			cur.Next()
		case <-ctx.Done():
			return root, ctx.Err()
		}
	}
}

// EnsureAgent brings an agent to every pod of a workload and waits for them.
func (s *Service) EnsureAgent(ctx context.Context, req *manager.EnsureAgentRequest) (*manager.AgentInfoSnapshot, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	if req.GetName() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "name must not be empty").WithHint("name the workload")
	}
	ns := req.GetNamespace()
	if ns == "" {
		ns = sess.GetClient().GetNamespace()
	}
	if err := managed(ctx, ns); err != nil {
		return nil, err
	}
	if _, err := s.proposeFor(ctx, sess, &commandv1.Command{Op: &commandv1.Command_EnsureAgent{
		EnsureAgent: &commandv1.EnsureAgent{SessionId: sess.GetId(), Namespace: ns, Name: req.GetName()},
	}}); err != nil {
		return nil, err
	}
	wctx, cancel := context.WithTimeout(ctx, arrivalTimeout)
	defer cancel()
	root, err := s.waitAgents(wctx, ns, req.GetName(), func(have, pods int) bool { return have > 0 && have >= pods })
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	out := agentsOf(root, ns, req.GetName())
	if err != nil && len(out.GetAgents()) == 0 {
		return nil, errs.New(codes.Internal, "AGENT_NOT_READY", "failed to ensure agent for workload %s: no agents became active", req.GetName()).
			WithHint("is the node with its pods connected? see `trivet node list`")
	}
	return out, nil
}

// UninstallAgents takes agents away: from the workloads that are named, or from
// all of the client's namespace. Their intercepts stay and find no agent until
// one is asked for again.
func (s *Service) UninstallAgents(ctx context.Context, req *manager.UninstallAgentsRequest) (*emptypb.Empty, error) {
	sess, err := s.session(ctx, req.GetSessionInfo(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	_, err = s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_UninstallAgents{UninstallAgents: &commandv1.UninstallAgents{
		SessionId: sess.GetId(), Namespace: sess.GetClient().GetNamespace(), Names: req.GetAgents(),
	}}})
	if err != nil {
		return nil, err
	}
	return new(emptypb.Empty), nil
}

// RemoveIntercept removes one of the caller's intercepts; an unknown name has
// been removed already.
func (s *Service) RemoveIntercept(ctx context.Context, req *manager.RemoveInterceptRequest2) (*emptypb.Empty, error) {
	id := req.GetSession().GetSessionId()
	row, err := s.lookup(ctx, id)
	switch {
	case id == "":
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "session id must not be empty")
	case req.GetName() == "":
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "name must not be empty")
	case err != nil:
		return nil, err
	case row == nil:
		return nil, errs.New(codes.NotFound, "SESSION_NOT_FOUND", "Client session %q not found", id)
	default:
		if err := owns(ctx, row); err != nil {
			return nil, err
		}
	}
	_, err = s.proposeFor(ctx, row, &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{
		RemoveIntercept: &commandv1.RemoveIntercept{SessionId: id, Name: req.GetName()},
	}})
	return new(emptypb.Empty), err
}

// GetIntercept reads one intercept by name and session, or by its full id.
func (s *Service) GetIntercept(ctx context.Context, req *manager.GetInterceptRequest) (*manager.InterceptInfo, error) {
	id := req.GetName()
	if id == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "name must not be empty")
	}
	if req.GetSession().GetSessionId() != "" {
		sess, err := s.session(ctx, req.GetSession(), 0)
		if err != nil {
			return nil, err
		}
		id = sess.GetId() + ":" + id
	}
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	row, ok := root.Intercept(id)
	if !ok || row.GetParent() != "" && authz.Caller(ctx).Role == pki.RoleClient {
		return nil, errs.New(codes.NotFound, "INTERCEPT_NOT_FOUND", "Intercept named %q not found", req.GetName()).
			WithHint("`trivet intercept list` shows what is there")
	}
	audience, err := interceptAudience(ctx, root, row)
	if err != nil {
		return nil, err
	}
	return s.interceptInfo(row, audience), nil
}

// interceptAudience says what the caller may see of an intercept: the owner
// everything, agents of its workload and operators all but the environment.
func interceptAudience(ctx context.Context, root *fsm.Root, row *commandv1.InterceptRow) (fsm.Audience, error) {
	me := authz.Caller(ctx)
	if owner, ok := root.Session(row.GetSessionId()); ok && authz.Confined(ctx) != nil && ownsConfined(ctx, owner) {
		return fsm.AudienceOwner, nil
	}
	switch {
	case row.GetIdentity() == me.String():
		return fsm.AudienceOwner, nil
	case isReader(me):
		return fsm.AudienceReader, nil
	}
	for a := range root.AgentsOf(row.GetSpec().GetNamespace(), row.GetSpec().GetAgent()) {
		if a.GetIdentity() == me.String() {
			return fsm.AudienceAgent, nil
		}
	}
	return 0, errs.New(codes.PermissionDenied, "INTERCEPT_NOT_YOURS", "intercept %q belongs to %s", row.GetId(), row.GetSpec().GetClient())
}

// ReviewIntercept takes an agent's verdict.
func (s *Service) ReviewIntercept(ctx context.Context, req *manager.ReviewInterceptRequest) (*emptypb.Empty, error) {
	id := req.GetSession().GetSessionId()
	if id == "" || req.GetId() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "session id and intercept id must not be empty")
	}
	row, err := s.lookup(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case row == nil:
		// The contract: a review by an agent that is gone is ignored.
		return new(emptypb.Empty), nil
	}
	if err := owns(ctx, row); err != nil {
		return nil, err
	}
	req.Environment = s.withoutExcluded(req.GetEnvironment())
	_, err = s.proposeFor(ctx, row, &commandv1.Command{Op: &commandv1.Command_ReviewIntercept{
		ReviewIntercept: &commandv1.ReviewIntercept{Review: req},
	}})
	return new(emptypb.Empty), err
}

func (s *Service) read(ctx context.Context) (*fsm.Root, error) {
	level, seen, err := engine.ReadOptions(ctx)
	if err != nil {
		return nil, err
	}
	return s.cfg.Core.Read(ctx, level, seen)
}
