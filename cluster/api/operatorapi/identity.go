package operatorapi

import (
	"context"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/cluster/identity"
	"trivet/internal/pki"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// Authority is what is behind tokens, identities and keys.
type Authority interface {
	CreateToken(ctx context.Context, caller string, req *operatorv1.CreateTokenRequest) (*commandv1.TokenRow, string, error)
	SetDenied(ctx context.Context, caller pki.ID, req *engine.Request, in *operatorv1.SetIdentityRequest) (uint64, error)
	Describe(ctx context.Context) (*operatorv1.GetAuthorityResponse, error)
	RotateIssuing(ctx context.Context, caller string, certPEM, keyPEM []byte) (*commandv1.KeyRow, error)
	RotateSealKey(ctx context.Context, caller string) (*commandv1.KeyRow, error)
}

// CreateToken makes a token. Its text is in this answer and nowhere else.
func (s *Service) CreateToken(ctx context.Context, req *operatorv1.CreateTokenRequest) (*operatorv1.CreateTokenResponse, error) {
	row, text, err := s.cfg.Authority.CreateToken(ctx, authz.Caller(ctx).String(), req)
	if err != nil {
		return nil, err
	}
	return &operatorv1.CreateTokenResponse{Token: token(row), Secret: text}, nil
}

// ListTokens lists tokens without what makes them work.
func (s *Service) ListTokens(ctx context.Context, req *operatorv1.ListTokensRequest) (*operatorv1.ListTokensResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListTokensResponse{Revision: root.Revision()}
	out.Tokens, out.NextPageToken, err = page(root.Tokens, req.GetPage(), (*commandv1.TokenRow).GetId,
		func(row *commandv1.TokenRow) (*operatorv1.Token, bool) { return token(row), true })
	return out, err
}

// RevokeToken makes a token useless; certificates that were given for it stay.
func (s *Service) RevokeToken(ctx context.Context, req *operatorv1.RevokeTokenRequest) (*operatorv1.RevokeTokenResponse, error) {
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_RevokeToken{RevokeToken: &commandv1.RevokeToken{Id: req.GetId()}}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.RevokeTokenResponse{Revision: res.GetRevision()}, nil
}

// ListIdentities lists the identities that something was decided about.
func (s *Service) ListIdentities(ctx context.Context, req *operatorv1.ListIdentitiesRequest) (*operatorv1.ListIdentitiesResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListIdentitiesResponse{Revision: root.Revision()}
	out.Identities, out.NextPageToken, err = page(root.Identities, req.GetPage(), (*commandv1.IdentityRow).GetUri,
		func(row *commandv1.IdentityRow) (*operatorv1.Identity, bool) {
			return &operatorv1.Identity{
				Uri: row.GetUri(), Denied: row.GetDenied(), Reason: row.GetReason(), ChangedAt: stamp(row.GetChangedAt()),
			}, true
		})
	return out, err
}

// SetIdentity puts an identity on the deny-list or takes it off.
func (s *Service) SetIdentity(ctx context.Context, req *operatorv1.SetIdentityRequest) (*operatorv1.SetIdentityResponse, error) {
	number, err := engine.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	revision, err := s.cfg.Authority.SetDenied(ctx, authz.Caller(ctx), number, req)
	if err != nil {
		return nil, err
	}
	return &operatorv1.SetIdentityResponse{Revision: revision}, nil
}

// GetAuthority shows the roots, the issuing CAs and which seal keys there are.
func (s *Service) GetAuthority(ctx context.Context, _ *operatorv1.GetAuthorityRequest) (*operatorv1.GetAuthorityResponse, error) {
	return s.cfg.Authority.Describe(ctx)
}

// RotateAuthority makes an issuing CA the one in use; without one it makes a
// new seal key.
func (s *Service) RotateAuthority(ctx context.Context, req *operatorv1.RotateAuthorityRequest) (*operatorv1.RotateAuthorityResponse, error) {
	caller := authz.Caller(ctx).String()
	var row *commandv1.KeyRow
	var err error
	if len(req.GetCertificate()) == 0 && len(req.GetKey()) == 0 {
		row, err = s.cfg.Authority.RotateSealKey(ctx, caller)
	} else {
		row, err = s.cfg.Authority.RotateIssuing(ctx, caller, req.GetCertificate(), req.GetKey())
	}
	if err != nil {
		return nil, err
	}
	return &operatorv1.RotateAuthorityResponse{Issuer: identity.Issuer(row)}, nil
}

func token(row *commandv1.TokenRow) *operatorv1.Token {
	return &operatorv1.Token{
		Id: row.GetId(), Role: row.GetRole(), NameGlob: row.GetNameGlob(), UsesLeft: row.GetUsesLeft(), Used: uint32(len(row.GetKeyDigests())),
		ExpiresAt: stamp(row.GetExpiresAt()), Revoked: row.GetRevoked(), CreatedBy: row.GetCreatedBy(), CreatedAt: stamp(row.GetCreatedAt()),
	}
}
