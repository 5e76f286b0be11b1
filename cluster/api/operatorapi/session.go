package operatorapi

import (
	"context"
	"slices"

	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// ListSessions lists all sessions.
func (s *Service) ListSessions(ctx context.Context, req *operatorv1.ListSessionsRequest) (*operatorv1.ListSessionsResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListSessionsResponse{Revision: root.Revision()}
	out.Sessions, out.NextPageToken, err = page(root.Sessions, req.GetPage(), (*commandv1.SessionRow).GetId,
		func(row *commandv1.SessionRow) (*operatorv1.Session, bool) {
			x := session(row)
			for _, id := range s.cfg.View.Servers(row.GetId()) {
				x.Attached = append(x.Attached, s.cfg.Cluster.NameOf(id))
			}
			slices.Sort(x.Attached)
			return x, true
		})
	return out, err
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
