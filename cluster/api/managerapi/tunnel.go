package managerapi

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
	"trivet/tunnel"
)

// WatchDial passes on the requests to dial that are meant for a session. An
// agent that calls it without a pod uid has shown itself as one of the older
// generation, whose sessions are shorter.
func (s *Service) WatchDial(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.DialRequest]) error {
	ctx := stream.Context()
	row, err := s.session(ctx, info, 0)
	if err != nil {
		return err
	}
	if err := s.showsItsAge(ctx, row); err != nil {
		return err
	}
	d := s.cfg.Registry.OpenDial(row.GetId())
	defer func() { d.Close(s.endedByPeer()) }()
	// The header tells the peer that from now on it can be asked.
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	pass := func() error {
		for _, req := range d.Take() {
			if err := stream.Send(req); err != nil {
				return err
			}
		}
		return nil
	}
	cur := s.cfg.Core.WatchFrom(s.cfg.Core.Root())
	for {
		select {
		case <-d.Ready():
			if err := pass(); err != nil {
				return err
			}
		case <-cur.Wait():
			if _, ok := cur.Next().Root.Session(row.GetId()); !ok {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			// Who asks from now on is told to ask elsewhere; what was taken in
			// before that is passed on.
			d.Close(false)
			if err := pass(); err != nil {
				return err
			}
			return errStopping()
		}
	}
}

// Tunnel joins the two ends of a connection. An agent's end waits for the
// client that its second message names; a client's end answers a dial request.
func (s *Service) Tunnel(stream grpc.BidiStreamingServer[manager.TunnelMessage, manager.TunnelMessage]) error {
	ctx := stream.Context()
	info, err := tunnel.Accept(stream)
	if err != nil {
		return err
	}
	row, err := s.session(ctx, &manager.SessionInfo{SessionId: info.SessionID}, 0)
	if err != nil {
		return err
	}
	if row.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT {
		return s.cfg.Exchange.Answer(ctx, stream, info)
	}
	client, err := tunnel.ReadSession(stream)
	if err != nil {
		return err
	}
	target, err := s.lookup(ctx, client)
	if err != nil {
		return err
	}
	if target.GetKind() != commandv1.SessionKind_SESSION_KIND_CLIENT {
		return errs.New(codes.Canceled, "SESSION_NOT_FOUND", "session cancelled: client session %q not found", client)
	}
	switch reach, err := s.mayReach(ctx, row, target); {
	case err != nil:
		return err
	case !reach:
		return errs.New(codes.PermissionDenied, "NO_INTERCEPT", "client session %q has no intercept on %s.%s",
			client, row.GetAgent().GetName(), row.GetAgent().GetNamespace())
	}
	return s.cfg.Exchange.Await(ctx, stream, info, client)
}

// mayReach: an agent reaches only clients that intercept its workload. The
// intercept may be newer than what this server shows, so "no" needs a
// linearizable look.
func (s *Service) mayReach(ctx context.Context, agent, client *commandv1.SessionRow) (bool, error) {
	if intercepts(s.cfg.Core.Root(), client, agent.GetAgent()) {
		return true, nil
	}
	root, err := s.cfg.Core.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return false, err
	}
	return intercepts(root, client, agent.GetAgent()), nil
}

func intercepts(root *fsm.Root, client *commandv1.SessionRow, workload *manager.AgentInfo) bool {
	for row := range root.InterceptsOf(client.GetId()) {
		if row.GetSpec().GetAgent() == workload.GetName() && row.GetSpec().GetNamespace() == workload.GetNamespace() {
			return true
		}
	}
	return false
}
