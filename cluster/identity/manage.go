package identity

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/cluster/engine"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/seal"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

const (
	defaultTokenTTL = time.Hour
	maxTokenTTL     = 30 * 24 * time.Hour
)

// CreateToken makes a token and returns its row with the text for its holder,
// which nobody can get a second time.
func (a *Authority) CreateToken(ctx context.Context, caller string, req *operatorv1.CreateTokenRequest) (*commandv1.TokenRow, string, error) {
	ttl := time.Duration(req.GetTtl())
	if ttl == 0 {
		ttl = defaultTokenTTL
	}
	invalid := func(format string, args ...any) *errs.Error {
		return errs.New(codes.InvalidArgument, "INVALID_ARGUMENT", format, args...)
	}
	switch {
	case !pki.Role(req.GetRole()).Valid():
		return nil, "", invalid("role %q is unknown", req.GetRole()).WithHint("use one of %v", pki.Roles())
	case ttl < 0 || ttl > maxTokenTTL:
		return nil, "", invalid("a token may live for up to %s, not for %s", maxTokenTTL, ttl)
	}
	root, err := a.cfg.Core.Read(ctx, engine.Default, 0)
	if err != nil {
		return nil, "", err
	}
	ca, err := a.issuing(root)
	if err != nil {
		return nil, "", err
	}
	token, err := enroll.NewToken(rootHash(ca))
	if err != nil {
		return nil, "", err
	}
	glob, uses := req.GetNameGlob(), max(req.GetUses(), 1)
	if glob == "" {
		glob = "*"
	}
	// Not under the caller's number: a repetition is another token, and one
	// whose text got lost runs out unused.
	res, err := a.cfg.Core.Propose(ctx, caller, nil, &commandv1.Command{Op: &commandv1.Command_CreateToken{CreateToken: &commandv1.CreateToken{
		Id: token.ID, SecretHash: token.SecretHash(), Role: req.GetRole(), NameGlob: glob, Uses: uses, ExpiresAt: a.now().Add(ttl).UnixNano(),
	}}})
	if err != nil {
		return nil, "", err
	}
	return res.GetToken(), token.String(), nil
}

// RotateIssuing makes an issuing CA the one in use. It was signed by a root of
// this cluster, which this server checks. The one before stays trusted as long
// as the root does: its leaves bring it along.
func (a *Authority) RotateIssuing(ctx context.Context, caller string, certPEM, keyPEM []byte) (*commandv1.KeyRow, error) {
	ca, err := pki.ParseCA(a.cfg.Source.Bundle().RootPEM(), certPEM, keyPEM)
	if err != nil {
		e := errs.From(err)
		e.Code = codes.InvalidArgument
		return nil, e
	}
	if own := a.cfg.Source.Bundle().ID.Cluster; ca.Cluster != own {
		return nil, errs.New(codes.InvalidArgument, pki.ReasonWrongCluster, "the CA is that of cluster %q, this is %q", ca.Cluster, own)
	}
	if now := a.now(); now.After(ca.NotAfter()) {
		return nil, errs.New(codes.InvalidArgument, pki.ReasonExpired, "the issuing CA ended at %s", ca.NotAfter().UTC().Format(time.RFC3339)).
			WithHint("make a new one: trivet ca rotate")
	}
	root, err := a.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return nil, err
	}
	i, err := sealIssuing(a.cfg.Sealer.Ring(), ca)
	if err != nil {
		return nil, err
	}
	for _, row := range keyRows(root, KindIssuing) {
		if row.GetId() == i.id && row.GetActive() {
			return row, nil // repeated
		}
	}
	return a.putKey(ctx, caller, &commandv1.KeyRow{
		Id: i.id, Kind: KindIssuing, Sealed: i.sealed, SealKeyId: a.cfg.Sealer.Ring().Active(), Public: i.certificate, Active: true,
		NotAfter: ca.NotAfter().UnixNano(),
	}, nil)
}

// RotateSealKey makes a new seal key the one in use. It travels in the state,
// sealed with the one before. What the old one sealed stays readable.
func (a *Authority) RotateSealKey(ctx context.Context, caller string) (*commandv1.KeyRow, error) {
	if _, err := a.cfg.Core.Read(ctx, engine.Linearizable, 0); err != nil {
		return nil, err
	}
	ring := a.cfg.Sealer.Ring()
	secret, err := seal.NewSecret()
	if err != nil {
		return nil, err
	}
	next, err := ring.With(secret)
	if err != nil {
		return nil, err
	}
	id := sealID(next.Active())
	return a.putKey(ctx, caller, &commandv1.KeyRow{
		Id: id, Kind: KindSeal, Sealed: ring.Seal(id, secret), SealKeyId: ring.Active(), Active: true,
	}, new(uint64))
}

// putKey stores a key row; ifRevision as in the command.
func (a *Authority) putKey(ctx context.Context, caller string, row *commandv1.KeyRow, ifRevision *uint64) (*commandv1.KeyRow, error) {
	cmd := &commandv1.Command{Op: &commandv1.Command_PutKey{PutKey: &commandv1.PutKey{Key: row, IfModifyRevision: ifRevision}}}
	res, err := a.cfg.Core.Propose(ctx, caller, nil, cmd)
	if err != nil {
		return nil, err
	}
	return res.GetKey(), nil
}

// Describe is the authority as operators see it.
func (a *Authority) Describe(ctx context.Context) (*operatorv1.GetAuthorityResponse, error) {
	root, err := a.cfg.Core.Read(ctx, engine.Default, 0)
	if err != nil {
		return nil, err
	}
	ring, bundle := a.cfg.Sealer.Ring(), a.cfg.Source.Bundle()
	out := &operatorv1.GetAuthorityResponse{
		ClusterName: bundle.ID.Cluster, Roots: bundle.RootPEM(), SealKeyIds: ring.IDs(), SealKeyId: ring.Active(),
	}
	for _, row := range keyRows(root, KindIssuing) {
		out.Issuers = append(out.Issuers, Issuer(row))
	}
	return out, nil
}

// SetDenied puts an identity on the deny-list or takes it off.
func (a *Authority) SetDenied(ctx context.Context, caller pki.ID, req *engine.Request, in *operatorv1.SetIdentityRequest) (uint64, error) {
	id, err := pki.ParseID(in.GetUri())
	if err != nil {
		return 0, errs.New(codes.InvalidArgument, "INVALID_ARGUMENT", "%w", err).WithHint("an identity looks like spiffe://CLUSTER/ROLE/NAME")
	}
	switch own := a.cfg.Source.Bundle().ID.Cluster; {
	case id.Cluster != own:
		return 0, errs.New(codes.InvalidArgument, pki.ReasonWrongCluster, "%s is of another cluster, this is %q", id, own)
	case in.GetDenied() && id == caller:
		return 0, errs.New(codes.FailedPrecondition, "OWN_IDENTITY", "%s would deny itself and could not take it back", id).
			WithHint("have another operator do it")
	}
	res, err := a.cfg.Core.Propose(ctx, caller.String(), req, &commandv1.Command{Op: &commandv1.Command_PutIdentity{
		PutIdentity: &commandv1.PutIdentity{Uri: in.GetUri(), Denied: in.GetDenied(), Reason: in.GetReason()},
	}})
	return res.GetRevision(), err
}

// Issuer is a row of an issuing CA as operators see it.
func Issuer(row *commandv1.KeyRow) *operatorv1.Issuer {
	out := &operatorv1.Issuer{Id: row.GetId(), Certificate: row.GetPublic(), Active: row.GetActive()}
	if end := row.GetNotAfter(); end != 0 {
		out.NotAfter = timestamppb.New(time.Unix(0, end))
	}
	return out
}
