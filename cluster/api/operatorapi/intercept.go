package operatorapi

import (
	"context"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/authz"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// ListIntercepts lists what the caller may see.
func (s *Service) ListIntercepts(ctx context.Context, req *operatorv1.ListInterceptsRequest) (*operatorv1.ListInterceptsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	me := authz.Caller(ctx)
	out := &operatorv1.ListInterceptsResponse{Revision: root.Revision()}
	out.Intercepts, out.NextPageToken, err = page(root.Intercepts, req.GetPage(), (*commandv1.InterceptRow).GetId,
		func(row *commandv1.InterceptRow) (*operatorv1.Intercept, bool) {
			own := row.GetIdentity() == me.String()
			ns := req.GetNamespace()
			if row.GetParent() != "" || (req.GetOwn() || !all(me)) && !own || ns != "" && row.GetSpec().GetNamespace() != ns {
				return nil, false
			}
			return intercept(row), true
		})
	return out, err
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
		if !all(me) && row.GetIdentity() != me.String() || row.GetParent() != "" {
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
		ModifyRevision: row.GetModifyRevision(), Parent: row.GetParent(),
	}
}
