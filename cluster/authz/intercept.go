package authz

import (
	"context"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

type callerKey struct{}

// Caller returns the authenticated identity of the call; the zero ID outside
// of one.
func Caller(ctx context.Context) pki.ID {
	id, _ := ctx.Value(callerKey{}).(pki.ID)
	return id
}

// WithCaller returns a context that carries an identity, for calls that do not
// come over the network.
func WithCaller(ctx context.Context, id pki.ID) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}

// Guard checks every call against the table.
type Guard struct {
	// Denied, when set, says whether an identity is on the deny-list.
	Denied func(uri string) (reason string, denied bool)

	refused atomic.Uint64
}

// Refused counts the calls that were refused.
func (g *Guard) Refused() uint64 { return g.refused.Load() }

// Unary is the interceptor for unary rpcs.
func (g *Guard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	id, err := g.check(ctx, info.FullMethod)
	if err != nil {
		return nil, errs.Status(err)
	}
	resp, err := next(WithCaller(ctx, id), req)
	return resp, errs.Status(err)
}

// Stream is the interceptor for streaming rpcs.
func (g *Guard) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	id, err := g.check(ss.Context(), info.FullMethod)
	if err != nil {
		return errs.Status(err)
	}
	return errs.Status(next(srv, &callerStream{ss, WithCaller(ss.Context(), id)}))
}

type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *callerStream) Context() context.Context { return s.ctx }

func (g *Guard) check(ctx context.Context, method string) (pki.ID, error) {
	id, err := identify(ctx)
	if err == nil {
		err = g.allowed(id, method)
	}
	if err != nil {
		g.refused.Add(1)
		return pki.ID{}, err
	}
	return id, nil
}

func identify(ctx context.Context) (pki.ID, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return pki.ID{}, unauthenticated()
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return pki.ID{}, unauthenticated()
	}
	id, err := pki.PeerID(info.State)
	if err != nil {
		return pki.ID{}, errs.New(codes.Unauthenticated, "CERT_NO_IDENTITY", "read the caller's identity: %w", err)
	}
	return id, nil
}

func unauthenticated() error {
	return errs.New(codes.Unauthenticated, "CERT_NO_IDENTITY", "the connection has no client certificate").
		WithHint("use a context made by `trivet ca init` or `trivet login`")
}

func (g *Guard) allowed(id pki.ID, method string) error {
	allowed, ok := Roles(method)
	if !ok {
		return errs.New(codes.PermissionDenied, "NO_SUCH_RULE", "no role may call %s", method)
	}
	if !slices.Contains(allowed, id.Role) {
		return errs.New(codes.PermissionDenied, "ROLE_NOT_ALLOWED", "role %s may not call %s", id.Role, method).
			WithHint("use a certificate with one of the roles %v", allowed)
	}
	if g.Denied != nil {
		if why, denied := g.Denied(id.String()); denied {
			return errs.New(codes.PermissionDenied, "IDENTITY_DENIED", "%s is on the deny-list: %s", id, why)
		}
	}
	return nil
}
