// Package enrollapi serves trivet.operator.v1.Enrollment: certificates for
// tokens, and the next certificate for the holder of one. Who may call it is
// the guard's to say: Enroll is for everybody, Renew for those who have, or
// lately had, a certificate.
package enrollapi

import (
	"context"

	"trivet/cluster/authz"
	"trivet/internal/pki"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// Authority gives out certificates.
type Authority interface {
	Enroll(ctx context.Context, req *operatorv1.EnrollRequest) (*operatorv1.EnrollResponse, error)
	Renew(ctx context.Context, caller pki.ID, csr []byte) (*operatorv1.EnrollResponse, error)
}

// Service is the enrolment service.
type Service struct {
	operatorsvc.UnimplementedEnrollmentServer
	authority Authority
}

// New makes the service.
func New(a Authority) *Service { return &Service{authority: a} }

// Enroll gives a certificate for a token.
func (s *Service) Enroll(ctx context.Context, req *operatorv1.EnrollRequest) (*operatorv1.EnrollResponse, error) {
	return s.authority.Enroll(ctx, req)
}

// Renew gives the caller its next certificate.
func (s *Service) Renew(ctx context.Context, req *operatorv1.RenewRequest) (*operatorv1.EnrollResponse, error) {
	return s.authority.Renew(ctx, authz.Caller(ctx), req.GetCsr())
}
