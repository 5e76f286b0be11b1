package operatorapi

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// GetLimits returns the limits that hold, defaults filled in.
func (s *Service) GetLimits(ctx context.Context, _ *operatorv1.GetLimitsRequest) (*operatorv1.GetLimitsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	return &operatorv1.GetLimitsResponse{Limits: root.EffectiveLimits(), Revision: root.Revision()}, nil
}

// SetLimits replaces the limits; a field that is 0 means the default.
func (s *Service) SetLimits(ctx context.Context, req *operatorv1.SetLimitsRequest) (*operatorv1.SetLimitsResponse, error) {
	if req.GetLimits() == nil {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "limits must not be empty")
	}
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_SetLimits{
		SetLimits: &commandv1.SetLimits{Limits: withoutDefaults(req.GetLimits()), IfLimits: req.GetIfLimits()},
	}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.SetLimitsResponse{Revision: res.GetRevision()}, nil
}

// withoutDefaults leaves out what is as the default has it. Callers read all
// limits, change one and send all back; those that they never meant to choose
// must follow the default when a later version has a better one.
func withoutDefaults(l *commandv1.Limits) *commandv1.Limits {
	out := proto.CloneOf(l)
	m, defaults := out.ProtoReflect(), fsm.DefaultLimits().ProtoReflect()
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if v.Equal(defaults.Get(f)) {
			m.Clear(f)
		}
		return true
	})
	return out
}
