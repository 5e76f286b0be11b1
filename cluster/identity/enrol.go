package identity

import (
	"context"
	"crypto/subtle"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/enroll"
	"trivet/internal/errs"
	"trivet/internal/pki"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// Enroll gives a certificate for a token. The caller is nobody yet.
func (a *Authority) Enroll(ctx context.Context, req *operatorv1.EnrollRequest) (*operatorv1.EnrollResponse, error) {
	if !a.limiter.Allow() {
		return nil, errs.New(codes.ResourceExhausted, ReasonEnrolRate, "more than %d ask for certificates in a second", enrolRate).
			WithHint("ask again in a moment").WithRetry(time.Second)
	}
	token, err := enroll.ParseToken(req.GetToken())
	if err != nil {
		return nil, err
	}
	key, err := pki.CSRKeyDigest(req.GetCsr())
	if err != nil {
		return nil, err
	}
	row, root, err := a.token(ctx, token)
	if err != nil {
		return nil, err
	}
	id, err := a.wanted(row, pki.Role(req.GetRole()), req.GetName())
	if err != nil {
		return nil, err
	}
	// First, so that no use is lost to a cluster that cannot sign.
	ca, err := a.issuing(root)
	if err != nil {
		return nil, err
	}
	if _, err := a.cfg.Core.Propose(ctx, id.String(), nil, &commandv1.Command{Op: &commandv1.Command_ConsumeToken{
		ConsumeToken: &commandv1.ConsumeToken{
			Id: token.ID, SecretHash: token.SecretHash(), Role: string(id.Role), Name: id.Name, KeyDigest: key,
		},
	}}); err != nil {
		return nil, err
	}
	a.cfg.Logger.Info("certificate given for a token", "identity", id.String(), "token", token.ID)
	return a.answer(ca, id, req.GetCsr())
}

// token finds a token by its secret. An unknown one may be newer than what this
// server shows. It answers before anything is written, and alike for an unknown
// token and a wrong secret.
func (a *Authority) token(ctx context.Context, token enroll.Token) (*commandv1.TokenRow, *fsm.Root, error) {
	root := a.cfg.Core.Root()
	row, ok := root.Token(token.ID)
	if !ok || activeKey(root, KindIssuing) == nil {
		var err error
		if root, err = a.cfg.Core.Read(ctx, engine.Linearizable, 0); err != nil {
			return nil, nil, err
		}
		row, ok = root.Token(token.ID)
	}
	if !ok || subtle.ConstantTimeCompare(row.GetSecretHash(), token.SecretHash()) != 1 {
		return nil, nil, errs.New(codes.PermissionDenied, ReasonTokenInvalid, "token is not valid").
			WithHint("ask an operator for a new token")
	}
	return row, root, nil
}

// wanted is the identity that a request is for. What it does not say, the token
// may.
func (a *Authority) wanted(row *commandv1.TokenRow, role pki.Role, name string) (pki.ID, error) {
	if role == "" {
		role = pki.Role(row.GetRole())
	}
	if glob := row.GetNameGlob(); name == "" {
		if strings.ContainsAny(glob, `*?[\`) {
			return pki.ID{}, errs.New(codes.InvalidArgument, ReasonNameRequired, "the token is for any name like %q, and none was asked for", glob).
				WithHint("give a name")
		}
		name = glob
	}
	id := pki.ID{Cluster: a.cfg.Source.Bundle().ID.Cluster, Role: role, Name: name}
	if err := id.Validate(); err != nil {
		e := errs.From(err)
		e.Code = codes.InvalidArgument
		return pki.ID{}, e
	}
	return id, nil
}

// Renew gives the next certificate to the holder of one. The caller has proved
// who it is; it may have ended a while ago.
func (a *Authority) Renew(ctx context.Context, caller pki.ID, csr []byte) (*operatorv1.EnrollResponse, error) {
	if !pki.Renewable(caller.Role) {
		return nil, errs.New(codes.PermissionDenied, ReasonNotRenewable, "certificates of role %s are not renewed", caller.Role).
			WithHint("an operator gives a new one for a token: trivet token create --role %s", caller.Role)
	}
	// Linearizable: a server that is cut off would not know of a denial.
	root, err := a.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return nil, err
	}
	if row, ok := root.Identity(caller.String()); ok && row.GetDenied() {
		return nil, errs.New(codes.PermissionDenied, ReasonDenied, "%s is on the deny-list: %s", caller, row.GetReason())
	}
	ca, err := a.issuing(root)
	if err != nil {
		return nil, err
	}
	if person(caller.Role) {
		if err := a.audit(ctx, caller.String(), "identity.renew", caller.String(), ""); err != nil {
			return nil, err
		}
	}
	return a.answer(ca, caller, csr)
}

// person tells whether certificates of role are those of people.
func person(role pki.Role) bool {
	switch role {
	case pki.RoleClient, pki.RoleOperator, pki.RoleViewer, pki.RoleDebug:
		return true
	}
	return false
}

// audit notes an action of the security class, once all servers know how.
func (a *Authority) audit(ctx context.Context, identity, action, subject, detail string) error {
	cmd := &commandv1.Command{Op: &commandv1.Command_RecordAudit{RecordAudit: &commandv1.RecordAudit{
		Class: commandv1.AuditClass_AUDIT_CLASS_SECURITY, Action: action, Subject: subject, Detail: detail,
	}}}
	_, err := a.cfg.Core.Propose(ctx, identity, nil, cmd)
	if errs.Reason(err) == reasonUpgrade {
		return nil
	}
	return err
}

// answer signs and adds what the holder needs to know.
func (a *Authority) answer(ca *pki.CA, id pki.ID, csr []byte) (*operatorv1.EnrollResponse, error) {
	signed, err := a.sign(ca, id, csr)
	if err != nil {
		return nil, err
	}
	end, err := pki.ChainEnd(signed.Chain)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.EnrollResponse{
		Chain: signed.Chain, Roots: signed.Roots, Servers: a.servers(a.cfg.Core.Root()), Identity: id.String(), NotAfter: timestamppb.New(end),
	}
	if id.Role == pki.RoleServer {
		out.Keyring = a.cfg.Sealer.Ring().Encode()
	}
	return out, nil
}

// rootHash names the root that the CA in use comes from.
func rootHash(ca *pki.CA) []byte { return pki.RootHash(ca.Root()) }
