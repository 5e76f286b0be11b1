package operatorapi

import (
	"context"
	"slices"

	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// ListSessions lists all sessions.
func (s *Service) ListSessions(ctx context.Context, _ *operatorv1.ListSessionsRequest) (*operatorv1.ListSessionsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListSessionsResponse{Revision: root.Revision()}
	for row := range root.Sessions {
		x := session(row)
		for _, id := range s.cfg.View.Servers(row.GetId()) {
			x.Attached = append(x.Attached, s.cfg.Cluster.NameOf(id))
		}
		slices.Sort(x.Attached)
		out.Sessions = append(out.Sessions, x)
	}
	return out, nil
}

func session(row *commandv1.SessionRow) *operatorv1.Session {
	x := &operatorv1.Session{Id: row.GetId(), Kind: "client", Identity: row.GetIdentity(), CreatedAt: stamp(row.GetCreatedAt())}
	if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
		a := row.GetAgent()
		x.Kind, x.Name, x.Namespace, x.PodName, x.Version = "agent", a.GetName(), a.GetNamespace(), a.GetPodName(), a.GetVersion()
		return x
	}
	c := row.GetClient()
	x.Name, x.Namespace, x.Version = c.GetName(), c.GetNamespace(), c.GetVersion()
	return x
}
