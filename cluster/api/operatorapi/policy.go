package operatorapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// ListPolicies lists the policies by name.
func (s *Service) ListPolicies(ctx context.Context, req *operatorv1.ListPoliciesRequest) (*operatorv1.ListPoliciesResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListPoliciesResponse{Revision: root.Revision()}
	out.Policies, out.NextPageToken, err = page(root.Policies, req.GetPage(), (*commandv1.PolicyRow).GetName,
		func(row *commandv1.PolicyRow) (*commandv1.PolicyRow, bool) { return row, true })
	return out, err
}

// PutPolicy makes or replaces a policy.
func (s *Service) PutPolicy(ctx context.Context, req *operatorv1.PutPolicyRequest) (*operatorv1.PutPolicyResponse, error) {
	if req.GetPolicy().GetName() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "policy name must not be empty")
	}
	// What the state keeps of its own is not the caller's to say.
	p := proto.CloneOf(req.GetPolicy())
	p.ChangedAt, p.CreateRevision, p.ModifyRevision = 0, 0, 0
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_PutPolicy{
		PutPolicy: &commandv1.PutPolicy{Policy: p, IfModifyRevision: req.IfModifyRevision},
	}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.PutPolicyResponse{Revision: res.GetRevision()}, nil
}

// DeletePolicy removes a policy. When it was the last one, every intercept is
// allowed again.
func (s *Service) DeletePolicy(ctx context.Context, req *operatorv1.DeletePolicyRequest) (*operatorv1.DeletePolicyResponse, error) {
	if req.GetName() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "policy name must not be empty")
	}
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_DeletePolicy{
		DeletePolicy: &commandv1.DeletePolicy{Name: req.GetName()},
	}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.DeletePolicyResponse{Revision: res.GetRevision()}, nil
}
