package managerapi

import (
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// follow sends build's snapshot at once and again after every change that
// makes it differ, until the session ends (nil), the peer goes or the server
// stops. Readers get the newest state: what changed while a slow one was busy
// is folded into its next snapshot.
func follow[M any](s *Service, stream grpc.ServerStreamingServer[M], session string,
	relevant func(fsm.Event) bool, build func(*fsm.Root) *M, equal func(a, b *M) bool,
) error {
	ctx := stream.Context()
	if session != "" {
		detach := s.cfg.Registry.OpenWatch(session)
		defer func() { detach(s.endedByPeer()) }()
	}
	root := s.cfg.Core.Root()
	cur := s.cfg.Core.WatchFrom(root)
	if err := stream.SendHeader(metadata.Pairs(engine.MetaRevision, revision(root))); err != nil {
		return err
	}
	last := build(root)
	if err := stream.Send(last); err != nil {
		return err
	}
	for {
		select {
		case <-cur.Wait():
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			return errStopping()
		}
		batch := cur.Next()
		if session != "" {
			if _, ok := batch.Root.Session(session); !ok {
				return nil
			}
		}
		if !batch.Resync && !slices.ContainsFunc(batch.Events, relevant) {
			continue
		}
		next := build(batch.Root)
		if equal(last, next) {
			continue
		}
		if err := stream.Send(next); err != nil {
			return err
		}
		last = next
	}
}

func errStopping() error {
	return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").WithHint("reconnect to another server")
}

// WatchIntercepts follows the intercepts that concern a session: a client's
// own, or those of an agent's workload; all of them, without a session, for
// operators and viewers.
func (s *Service) WatchIntercepts(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.InterceptInfoSnapshot]) error {
	ctx := stream.Context()
	view := interceptView{audience: fsm.AudienceReader, info: s.interceptInfo}
	if info.GetSessionId() == "" {
		if !isReader(authz.Caller(ctx)) {
			return errs.New(codes.PermissionDenied, "SESSION_REQUIRED", "only operators and viewers may watch all intercepts").
				WithHint("send your session")
		}
	} else {
		row, err := s.session(ctx, info, 0)
		if err != nil {
			return err
		}
		view.session = row
		view.audience = fsm.AudienceOwner
		if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
			view.audience = fsm.AudienceAgent
		}
	}
	return follow(s, stream, info.GetSessionId(), view.concerns, view.snapshot, func(a, b *manager.InterceptInfoSnapshot) bool {
		return proto.Equal(a, b)
	})
}

type interceptView struct {
	session  *commandv1.SessionRow
	audience fsm.Audience
	// info describes a row to an audience.
	info func(*commandv1.InterceptRow, fsm.Audience) *manager.InterceptInfo
}

func (v interceptView) concerns(e fsm.Event) bool {
	if e.Table != fsm.TableIntercepts {
		return false
	}
	for _, m := range []proto.Message{e.Old, e.New} {
		if row, ok := m.(*commandv1.InterceptRow); ok && row != nil && v.ofSession(row) {
			return true
		}
	}
	return false
}

func (v interceptView) ofSession(row *commandv1.InterceptRow) bool {
	switch {
	case v.session == nil:
		return true
	case v.session.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT:
		return row.GetSessionId() == v.session.GetId()
	default:
		return row.GetSpec().GetAgent() == v.session.GetAgent().GetName() &&
			row.GetSpec().GetNamespace() == v.session.GetAgent().GetNamespace()
	}
}

func (v interceptView) snapshot(root *fsm.Root) *manager.InterceptInfoSnapshot {
	out := new(manager.InterceptInfoSnapshot)
	add := func(row *commandv1.InterceptRow) {
		if v.audience == fsm.AudienceAgent {
			if _, visible := fsm.AgentView(row); !visible {
				return
			}
		} else if row.GetDisposition() == manager.InterceptDispositionType_REMOVED && v.audience == fsm.AudienceOwner {
			return
		}
		out.Intercepts = append(out.Intercepts, v.info(row, v.audience))
	}
	switch {
	case v.session == nil:
		for row := range root.Intercepts {
			add(row)
		}
	case v.session.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT:
		for row := range root.InterceptsOf(v.session.GetId()) {
			add(row)
		}
	default:
		a := v.session.GetAgent()
		for row := range root.InterceptsFor(a.GetNamespace(), a.GetName()) {
			add(row)
		}
	}
	slices.SortFunc(out.Intercepts, func(a, b *manager.InterceptInfo) int { return strings.Compare(a.GetId(), b.GetId()) })
	return out
}

// WatchAgents follows the agents of the client's namespace, or of all when it
// is connected to none.
func (s *Service) WatchAgents(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.AgentInfoSnapshot]) error {
	row, err := s.session(stream.Context(), info, 0)
	if err != nil {
		return err
	}
	ns := row.GetClient().GetNamespace()
	match := func(r *commandv1.SessionRow) bool {
		return r.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT && (ns == "" || r.GetAgent().GetNamespace() == ns)
	}
	return follow(s, stream, row.GetId(),
		func(e fsm.Event) bool { return e.Table == fsm.TableSessions },
		func(root *fsm.Root) *manager.AgentInfoSnapshot { return agentSnapshot(root, match, nil) },
		func(a, b *manager.AgentInfoSnapshot) bool { return proto.Equal(a, b) })
}

// agentSnapshot lists agents by session id, or as order says; environments are
// for the owner of an intercept only.
func agentSnapshot(root *fsm.Root, match func(*commandv1.SessionRow) bool, order func(a, b *manager.AgentInfo) int) *manager.AgentInfoSnapshot {
	out := new(manager.AgentInfoSnapshot)
	for row := range root.Sessions {
		if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT && match(row) {
			out.Agents = append(out.Agents, withoutEnvironment(row.GetAgent()))
		}
	}
	if order != nil {
		slices.SortStableFunc(out.Agents, order)
	}
	return out
}

func withoutEnvironment(a *manager.AgentInfo) *manager.AgentInfo {
	secret := len(a.GetEnvironment()) > 0
	for _, c := range a.GetContainers() {
		secret = secret || len(c.GetEnvironment()) > 0
	}
	if !secret {
		return a
	}
	c := proto.CloneOf(a)
	c.Environment = nil
	for _, ci := range c.GetContainers() {
		ci.Environment = nil
	}
	return c
}

func revision(root *fsm.Root) string { return engine.FormatRevision(root.Revision()) }
