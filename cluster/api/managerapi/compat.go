package managerapi

import (
	"context"

	"google.golang.org/grpc/codes"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// notManaged has the text of the published manager.
func notManaged(namespace string) error {
	return errs.New(codes.FailedPrecondition, "NAMESPACE_NOT_MANAGED", "namespace %s is not managed", namespace).
		WithHint("the listener for peers without certificates is confined to other namespaces")
}

// managed refuses a namespace that is not within the caller's confinement.
func managed(ctx context.Context, namespaces ...string) error {
	c := authz.Confined(ctx)
	if c == nil {
		return nil
	}
	for _, ns := range namespaces {
		if !c.Manages(ns) {
			return notManaged(ns)
		}
	}
	return nil
}

// watchable are the namespaces of a watch: those that the request lists, an empty
// name being that of the session, within the caller's confinement.
func watchable(ctx context.Context, row *commandv1.SessionRow, names ...string) (namespaces, error) {
	for _, ns := range names {
		if ns == "" {
			continue
		}
		if err := managed(ctx, ns); err != nil {
			return nil, err
		}
	}
	return within(ctx, listed(row, names)), nil
}

// within cuts the namespaces that a watch shows down to those of the caller's
// confinement.
func within(ctx context.Context, in namespaces) namespaces {
	c := authz.Confined(ctx)
	if c == nil || c.All() {
		return in
	}
	out := make(namespaces)
	for _, ns := range c.Namespaces {
		if in.has(ns) {
			out[ns] = struct{}{}
		}
	}
	return out
}

// actor is the identity under which a call acts for a session that is its own.
// It is the caller's; a client without a certificate may come from another
// address than it arrived from, and goes on as who it was.
func actor(ctx context.Context, row *commandv1.SessionRow) string {
	if row.GetCompat() && authz.Confined(ctx) != nil {
		return row.GetIdentity()
	}
	return authz.Caller(ctx).String()
}

// ownsConfined decides for peers without a certificate: knowing a client's
// session, which nobody can guess, proves as much as its address would. An
// agent's session follows from its pod, so that its address has to.
func ownsConfined(ctx context.Context, row *commandv1.SessionRow) bool {
	return row.GetCompat() && (row.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT || row.GetIdentity() == authz.Caller(ctx).String())
}

// mayBeConfinedAgent lets an agent without a certificate arrive for workloads
// that no node has reported: those have agents that can be trusted, and one more
// that differs would stop them all.
func (s *Service) mayBeConfinedAgent(ctx context.Context, info *manager.AgentInfo) error {
	if err := managed(ctx, info.GetNamespace()); err != nil {
		return err
	}
	root, err := s.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return err
	}
	if row, ok := root.Workload(info.GetNamespace(), info.GetName()); ok && len(row.GetPods()) > 0 {
		return errs.New(codes.PermissionDenied, "NOT_YOUR_WORKLOAD", "workload %s.%s runs on a node, whose agents serve it",
			info.GetName(), info.GetNamespace()).WithHint("agents without a certificate are for workloads that no node reports")
	}
	return nil
}
