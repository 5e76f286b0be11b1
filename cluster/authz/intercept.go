package authz

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Reasons of refusals.
const (
	ReasonNoIdentity = pki.ReasonNoIdentity
	// ReasonNoRule: the table has no row for the rpc.
	ReasonNoRule = "NO_SUCH_RULE"
	// ReasonRole: the caller's role is not in the rpc's row.
	ReasonRole = "ROLE_NOT_ALLOWED"
	// ReasonDenied: the caller is on the deny-list.
	ReasonDenied = "IDENTITY_DENIED"
	// ReasonEnrolOnly: the connection is for asking for certificates only.
	ReasonEnrolOnly = "ENROLL_ONLY"
)

// Refusals that are logged per second, and at once. The rest is only counted:
// callers can cause any number.
const (
	logRate  = 1
	logBurst = 10
)

type callerKey struct{}

// Caller returns the authenticated identity of the call; the zero ID outside
// of one, and in a call of Enroll by somebody without a certificate.
func Caller(ctx context.Context) pki.ID {
	id, _ := ctx.Value(callerKey{}).(pki.ID)
	return id
}

// WithCaller returns a context that carries an identity, for calls that do not
// come over the network.
func WithCaller(ctx context.Context, id pki.ID) context.Context {
	return context.WithValue(ctx, callerKey{}, id)
}

// Guard checks every call against the table. The zero value admits whom the
// table names.
type Guard struct {
	// Denied, when set, says whether an identity is on the deny-list.
	Denied func(uri string) (reason string, denied bool)
	// Logger receives some of the refusals; nil: none.
	Logger *slog.Logger

	refusals refusals
	streams  streams
}

// Refused counts the calls that were refused.
func (g *Guard) Refused() uint64 {
	var n uint64
	for _, k := range g.refusals.all() {
		n += k
	}
	return n
}

// RefusedBy counts them by reason.
func (g *Guard) RefusedBy() map[string]uint64 { return g.refusals.all() }

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
	ctx, cancel := context.WithCancelCause(WithCaller(ss.Context(), id))
	defer cancel(nil)
	defer g.streams.add(id.String(), cancel)()
	// Again, now that End can find the stream: it may have come just before.
	if err := g.denied(id); err != nil {
		return errs.Status(g.refuse(id, info.FullMethod, err))
	}
	err = next(srv, &callerStream{ss, ctx})
	var ended *errs.Error
	if errors.As(context.Cause(ctx), &ended) && ended.Reason == ReasonDenied {
		err = ended
	}
	return errs.Status(err)
}

// End ends the open streams of an identity that was put on the deny-list, and
// returns how many there were. A stream whose handler waits for its peer alone
// ends with its connection, not before.
func (g *Guard) End(uri, reason string) int {
	return g.streams.end(uri, deniedError(uri, reason))
}

type callerStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *callerStream) Context() context.Context { return s.ctx }

func (g *Guard) check(ctx context.Context, method string) (pki.ID, error) {
	state, err := connection(ctx)
	if err != nil {
		return pki.ID{}, g.refuse(pki.ID{}, method, err)
	}
	id, err := pki.PeerID(state)
	switch {
	case err != nil && state.NegotiatedProtocol == pki.ALPNEnroll && len(state.PeerCertificates) == 0:
		id = pki.ID{}
		if err = nil; method != enrollSvc+"Enroll" {
			err = unauthenticated()
		}
	case err != nil:
		err = errs.New(codes.Unauthenticated, ReasonNoIdentity, "read the caller's identity: %w", err)
	case state.NegotiatedProtocol == pki.ALPNEnroll && method != enrollSvc+"Enroll" && method != enrollSvc+"Renew":
		err = errs.New(codes.PermissionDenied, ReasonEnrolOnly, "over this connection one may only ask for a certificate, not call %s", method)
	default:
		err = g.allowed(id, method)
	}
	if err != nil {
		return pki.ID{}, g.refuse(id, method, err)
	}
	return id, nil
}

// refuse counts a refusal and returns it.
func (g *Guard) refuse(id pki.ID, method string, err error) error {
	if g.refusals.add(errs.Reason(err)) && g.Logger != nil {
		who := ""
		if id != (pki.ID{}) {
			who = id.String()
		}
		g.Logger.Warn("a call was refused", "identity", who, "rpc", method, "reason", errs.Reason(err))
	}
	return err
}

func connection(ctx context.Context) (tls.ConnectionState, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return tls.ConnectionState{}, unauthenticated()
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return tls.ConnectionState{}, unauthenticated()
	}
	return info.State, nil
}

func unauthenticated() error {
	return errs.New(codes.Unauthenticated, ReasonNoIdentity, "the connection has no client certificate").
		WithHint("use a context made by `trivet ca init` or `trivet login`")
}

func (g *Guard) allowed(id pki.ID, method string) error {
	allowed, ok := Roles(method)
	if !ok {
		return errs.New(codes.PermissionDenied, ReasonNoRule, "no role may call %s", method)
	}
	if !slices.Contains(allowed, id.Role) {
		return errs.New(codes.PermissionDenied, ReasonRole, "role %s may not call %s", id.Role, method).
			WithHint("use a certificate with one of the roles %v", allowed)
	}
	return g.denied(id)
}

func (g *Guard) denied(id pki.ID) error {
	if g.Denied == nil || id == (pki.ID{}) {
		return nil
	}
	if why, denied := g.Denied(id.String()); denied {
		return deniedError(id.String(), why)
	}
	return nil
}

func deniedError(uri, why string) *errs.Error {
	return errs.New(codes.PermissionDenied, ReasonDenied, "%s is on the deny-list: %s", uri, why).
		WithHint("ask an operator why; `trivet identity allow` takes it off the list")
}

// newLogLimiter bounds what is logged.
func newLogLimiter() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Second/logRate), logBurst) }
