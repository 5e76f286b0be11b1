package authz

import (
	"context"
	"log/slog"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Confinement is what peers without a certificate may do, on a listener that an
// operator has asked for.
type Confinement struct {
	// Clients and Agents say which kinds of peers are served.
	Clients, Agents bool
	// Namespaces are those that they may see and use; one "*" means all.
	Namespaces []string
}

// Manages says whether a namespace is within the confinement. The empty one,
// which stands for all, is so only when all are.
func (c *Confinement) Manages(namespace string) bool {
	return c.All() || namespace != "" && slices.Contains(c.Namespaces, namespace)
}

// All says whether every namespace is within the confinement.
func (c *Confinement) All() bool { return slices.Contains(c.Namespaces, "*") }

type confinedKey struct{}

// Confined returns the confinement of a call by a peer without a certificate; nil
// for all others.
func Confined(ctx context.Context) *Confinement {
	c, _ := ctx.Value(confinedKey{}).(*Confinement)
	return c
}

// compatName starts the names of peers without a certificate; their address
// follows. No certificate can have such a name.
const compatName = "compat:"

// Methods that peers without a certificate may call: what the published ones do.
var (
	compatAny = []string{
		"Version", "GetClientConfig", "GetTelepresenceAPI", "GetKnownWorkloadKinds", "GetAgentImageFQN", "GetLicense",
		"CanConnectAmbassadorCloud", "GetCloudConfig", "Remain", "Depart", "WatchIntercepts", "WatchInterceptsDelta", "GetIntercept",
		"WatchDial", "Tunnel", "ReportMetrics",
	}
	compatClients = []string{
		"GetAgentConfig", "GetLogs", "ArriveAsClient", "ReconnectClient", "WatchAgentPods", "WatchAgentPodsDelta",
		"WatchAgentPodsInNamespacesDelta", "WatchAgents", "WatchAgentsDelta", "WatchAgentsNS", "WatchWorkloads", "WatchClusterInfo",
		"EnsureAgent", "PrepareIntercept", "CreateIntercept", "RemoveIntercept", "UpdateIntercept", "Lookup", "LookupDNS",
	}
	compatAgents = []string{
		"ArriveAsAgent", "ReconnectAgent", "WatchLogLevel", "ReviewIntercept", "WatchLookupDNS", "AgentLookupDNSResponse",
	}
)

const healthService = "/grpc.health.v1.Health/"

// CompatGuard admits peers without a certificate to what their confinement names.
type CompatGuard struct {
	Confinement *Confinement
	// Cluster is the trust domain of the identities that it gives.
	Cluster string
	Logger  *slog.Logger

	methods  map[string]bool
	refusals refusals
}

// NewCompatGuard makes a CompatGuard.
func NewCompatGuard(c *Confinement, cluster string, logger *slog.Logger) *CompatGuard {
	g := &CompatGuard{Confinement: c, Cluster: cluster, Logger: logger, methods: make(map[string]bool)}
	add := func(names []string) {
		for _, n := range names {
			g.methods[mgrSvc+n] = true
		}
	}
	add(compatAny)
	if c.Clients {
		add(compatClients)
	}
	if c.Agents {
		add(compatAgents)
	}
	for _, n := range []string{"Check", "Watch", "List"} {
		g.methods[healthService+n] = true
	}
	return g
}

// RefusedBy counts the calls that were refused, by reason.
func (g *CompatGuard) RefusedBy() map[string]uint64 { return g.refusals.all() }

// Unary is the interceptor for unary rpcs.
func (g *CompatGuard) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, errs.Status(err)
	}
	resp, err := next(ctx, req)
	return resp, errs.Status(err)
}

// Stream is the interceptor for streaming rpcs.
func (g *CompatGuard) Stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return errs.Status(err)
	}
	return errs.Status(next(srv, &callerStream{ss, ctx}))
}

// admit gives the caller an identity by its address.
func (g *CompatGuard) admit(ctx context.Context, method string) (context.Context, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil, errs.New(codes.Unauthenticated, ReasonNoIdentity, "the call has no peer")
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return nil, errs.New(codes.Unauthenticated, ReasonNoIdentity, "the peer's address %q: %w", p.Addr, err)
	}
	id := pki.ID{Cluster: g.Cluster, Role: pki.RoleClient, Name: compatName + host}
	if !g.methods[method] {
		// Unknown methods too: newer peers step down to what is there.
		if g.refusals.add(ReasonCompat) && g.Logger != nil {
			g.Logger.Warn("a call without a certificate was refused", "identity", id.String(), "rpc", method)
		}
		return nil, errs.New(codes.Unimplemented, ReasonCompat, "%s is not served without a certificate", method).
			WithHint("use the main port with a certificate")
	}
	return context.WithValue(WithCaller(ctx, id), confinedKey{}, g.Confinement), nil
}

// ReasonCompat: the rpc is not for peers without a certificate.
const ReasonCompat = "COMPAT_NOT_SERVED"
