package clienttest

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

func (o *operatorService) ListAudit(r *operatorv1.ListAuditRequest, stream grpc.ServerStreamingServer[operatorv1.ListAuditResponse]) error {
	wanted := func(c commandv1.AuditClass) bool {
		return r.GetClass() == "" || strings.EqualFold("AUDIT_CLASS_"+r.GetClass(), c.String())
	}
	o.f.mu.Lock()
	records, revision := o.f.Audit, o.f.Status.GetRevision()
	last := &operatorv1.ListAuditResponse{Revision: revision}
	for _, h := range o.f.AuditHeads {
		if wanted(h.GetClass()) {
			last.Heads = append(last.Heads, h)
		}
	}
	o.f.mu.Unlock()
	for _, rec := range records {
		if !wanted(rec.GetClass()) || rec.GetNumber() <= r.GetAfter() {
			continue
		}
		if err := stream.Send(&operatorv1.ListAuditResponse{Records: []*commandv1.AuditRow{rec}, Revision: revision}); err != nil {
			return err
		}
	}
	return stream.Send(last)
}

func (o *operatorService) GetLimits(context.Context, *operatorv1.GetLimitsRequest) (*operatorv1.GetLimitsResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return &operatorv1.GetLimitsResponse{Limits: proto.CloneOf(o.f.Limits), Revision: o.f.Status.GetRevision()}, nil
}

func (o *operatorService) SetLimits(_ context.Context, r *operatorv1.SetLimitsRequest) (*operatorv1.SetLimitsResponse, error) {
	o.f.Change(func() { o.f.Limits = r.GetLimits() })
	return &operatorv1.SetLimitsResponse{Revision: o.f.Status.GetRevision() + 1}, nil
}

func (o *operatorService) ListPolicies(context.Context, *operatorv1.ListPoliciesRequest) (*operatorv1.ListPoliciesResponse, error) {
	o.f.mu.Lock()
	defer o.f.mu.Unlock()
	return &operatorv1.ListPoliciesResponse{Policies: o.f.Policies, Revision: o.f.Status.GetRevision()}, nil
}

func (o *operatorService) PutPolicy(_ context.Context, r *operatorv1.PutPolicyRequest) (*operatorv1.PutPolicyResponse, error) {
	revision := o.f.Status.GetRevision() + 1
	o.f.Change(func() {
		p := proto.CloneOf(r.GetPolicy())
		p.ModifyRevision = revision
		o.f.Policies = append(slices.DeleteFunc(slices.Clone(o.f.Policies), func(x *commandv1.PolicyRow) bool {
			return x.GetName() == p.GetName()
		}), p)
	})
	return &operatorv1.PutPolicyResponse{Revision: revision}, nil
}

func (o *operatorService) DeletePolicy(_ context.Context, r *operatorv1.DeletePolicyRequest) (*operatorv1.DeletePolicyResponse, error) {
	found := false
	o.f.Change(func() {
		o.f.Policies = slices.DeleteFunc(slices.Clone(o.f.Policies), func(x *commandv1.PolicyRow) bool {
			found = found || x.GetName() == r.GetName()
			return x.GetName() == r.GetName()
		})
	})
	if !found {
		return nil, errs.New(codes.NotFound, "POLICY_NOT_FOUND", "policy %q not found", r.GetName())
	}
	return &operatorv1.DeletePolicyResponse{Revision: o.f.Status.GetRevision() + 1}, nil
}
