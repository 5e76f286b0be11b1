package managerapi

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// WatchIntercepts follows the intercepts that concern a session: a client's
// own, or those of an agent's workload; all of them, without a session, for
// operators and viewers. Each message has all of them, by id.
func (s *Service) WatchIntercepts(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.InterceptInfoSnapshot]) error {
	view, err := s.interceptView(stream.Context(), info)
	if err != nil {
		return err
	}
	return followItems(s, stream, info.GetSessionId(), 0, view.items(), func(_ delta[*manager.InterceptInfo], all sent[*manager.InterceptInfo]) error {
		return stream.Send(&manager.InterceptInfoSnapshot{Intercepts: byKey(all)})
	})
}

// WatchInterceptsDelta is WatchIntercepts in changes; the first has them all.
func (s *Service) WatchInterceptsDelta(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.InterceptInfoDelta]) error {
	view, err := s.interceptView(stream.Context(), info)
	if err != nil {
		return err
	}
	return followItems(s, stream, info.GetSessionId(), 0, view.items(), func(d delta[*manager.InterceptInfo], _ sent[*manager.InterceptInfo]) error {
		return stream.Send(&manager.InterceptInfoDelta{Upserts: d.upserts, Removals: d.removals})
	})
}

func byKey[V any](all map[string]V) []V {
	out := make([]V, 0, len(all))
	for _, key := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[key])
	}
	return out
}

// interceptView is what a session sees of the intercepts.
type interceptView struct {
	session  *commandv1.SessionRow
	audience fsm.Audience
	// info describes a row to an audience.
	info func(*commandv1.InterceptRow, fsm.Audience) *manager.InterceptInfo
}

func (s *Service) interceptView(ctx context.Context, info *manager.SessionInfo) (interceptView, error) {
	view := interceptView{audience: fsm.AudienceReader, info: s.interceptInfo}
	if info.GetSessionId() == "" {
		if !isReader(authz.Caller(ctx)) {
			return view, errs.New(codes.PermissionDenied, "SESSION_REQUIRED", "only operators and viewers may watch all intercepts").
				WithHint("send your session")
		}
		return view, nil
	}
	row, err := s.session(ctx, info, 0)
	if err != nil {
		return view, err
	}
	view.session, view.audience = row, fsm.AudienceOwner
	if row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT {
		view.audience = fsm.AudienceAgent
	}
	return view, nil
}

func (v interceptView) items() items[*manager.InterceptInfo] {
	return items[*manager.InterceptInfo]{
		touched: func(_ *fsm.Root, e fsm.Event, key func(string)) {
			if e.Table == fsm.TableIntercepts && eitherRow(e, v.concerns) {
				key(e.Key)
			}
		},
		item: func(root *fsm.Root, id string) (*manager.InterceptInfo, bool) {
			row, ok := root.Intercept(id)
			if !ok || !v.concerns(row) || !v.visible(row) {
				return nil, false
			}
			return v.info(row, v.audience), true
		},
		all: func(root *fsm.Root, yield func(string, *manager.InterceptInfo)) {
			add := func(row *commandv1.InterceptRow) bool {
				if v.visible(row) {
					yield(row.GetId(), v.info(row, v.audience))
				}
				return true
			}
			switch {
			case v.session == nil:
				root.Intercepts(add)
			case v.session.GetKind() == commandv1.SessionKind_SESSION_KIND_CLIENT:
				root.InterceptsOf(v.session.GetId())(add)
			default:
				root.InterceptsFor(v.session.GetAgent().GetNamespace(), v.session.GetAgent().GetName())(add)
			}
		},
	}
}

// eitherRow says whether is holds for an event's row, as it was or as it is.
func eitherRow[R proto.Message](e fsm.Event, is func(R) bool) bool {
	for _, m := range []proto.Message{e.Old, e.New} {
		if row, ok := m.(R); ok && row.ProtoReflect().IsValid() && is(row) {
			return true
		}
	}
	return false
}

func (v interceptView) concerns(row *commandv1.InterceptRow) bool {
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

func (v interceptView) visible(row *commandv1.InterceptRow) bool {
	switch v.audience {
	case fsm.AudienceAgent:
		_, visible := fsm.AgentView(row)
		return visible
	case fsm.AudienceOwner:
		if row.GetDisposition() == manager.InterceptDispositionType_REMOVED {
			return false
		}
	}
	// Only agents know an intercept's further ports as intercepts.
	return row.GetParent() == ""
}

// WatchAgents follows the agents of the session's namespace, or all when it is
// connected to none. Each message has all of them, by session id.
func (s *Service) WatchAgents(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.AgentInfoSnapshot]) error {
	row, err := s.watcher(stream.Context(), info)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, "")
	if err != nil {
		return err
	}
	return s.agentSnapshots(row, in, stream)
}

// WatchAgentsNS is WatchAgents for the namespaces that the request lists.
func (s *Service) WatchAgentsNS(req *manager.AgentsRequest, stream grpc.ServerStreamingServer[manager.AgentInfoSnapshot]) error {
	row, err := s.watcher(stream.Context(), req.GetSession())
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, req.GetNamespaces()...)
	if err != nil {
		return err
	}
	return s.agentSnapshots(row, in, stream)
}

func (s *Service) agentSnapshots(row *commandv1.SessionRow, in namespaces, stream grpc.ServerStreamingServer[manager.AgentInfoSnapshot]) error {
	return followItems(s, stream, row.GetId(), gather, agentItems(in), func(_ delta[*manager.AgentInfo], all sent[*manager.AgentInfo]) error {
		return stream.Send(&manager.AgentInfoSnapshot{Agents: byKey(all)})
	})
}

// WatchAgentsDelta is WatchAgents in changes, by session id.
func (s *Service) WatchAgentsDelta(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.AgentInfoDelta]) error {
	row, err := s.watcher(stream.Context(), info)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, "")
	if err != nil {
		return err
	}
	return followItems(s, stream, row.GetId(), gather, agentItems(in), func(d delta[*manager.AgentInfo], _ sent[*manager.AgentInfo]) error {
		return stream.Send(&manager.AgentInfoDelta{Upserts: d.upserts, Removals: d.removals})
	})
}

// watcher is the session of a watch; none is one that nobody knows.
func (s *Service) watcher(ctx context.Context, info *manager.SessionInfo) (*commandv1.SessionRow, error) {
	if info.GetSessionId() == "" {
		return nil, unknownSession("")
	}
	return s.session(ctx, info, 0)
}

// namespaces are those that a watch shows; nil: all.
type namespaces map[string]struct{}

func (n namespaces) has(ns string) bool {
	_, ok := n[ns]
	return ok || n == nil
}

// listed are the namespaces of a request, an empty name being that of the
// session.
func listed(row *commandv1.SessionRow, names []string) namespaces {
	own := cmp.Or(row.GetClient().GetNamespace(), row.GetAgent().GetNamespace())
	out := make(namespaces, len(names))
	for _, name := range names {
		if name = cmp.Or(name, own); name == "" {
			return nil
		}
		out[name] = struct{}{}
	}
	return out
}

func agentItems(in namespaces) items[*manager.AgentInfo] {
	shown := func(row *commandv1.SessionRow) bool { return isAgentIn(row, in) }
	return items[*manager.AgentInfo]{
		touched: func(_ *fsm.Root, e fsm.Event, key func(string)) {
			if e.Table == fsm.TableSessions && eitherRow(e, shown) {
				key(e.Key)
			}
		},
		item: func(root *fsm.Root, id string) (*manager.AgentInfo, bool) {
			row, ok := root.Session(id)
			if !ok || !shown(row) {
				return nil, false
			}
			return withoutEnvironment(row.GetAgent()), true
		},
		all: func(root *fsm.Root, yield func(string, *manager.AgentInfo)) {
			for row := range root.Sessions {
				if shown(row) {
					yield(row.GetId(), withoutEnvironment(row.GetAgent()))
				}
			}
		},
	}
}

func isAgentIn(row *commandv1.SessionRow, in namespaces) bool {
	return row.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT && in.has(row.GetAgent().GetNamespace())
}

// agentsOf lists the agents of a workload by the names of their pods.
func agentsOf(root *fsm.Root, ns, name string) *manager.AgentInfoSnapshot {
	out := new(manager.AgentInfoSnapshot)
	for row := range root.AgentsOf(ns, name) {
		out.Agents = append(out.Agents, withoutEnvironment(row.GetAgent()))
	}
	slices.SortStableFunc(out.Agents, func(a, b *manager.AgentInfo) int { return strings.Compare(a.GetPodName(), b.GetPodName()) })
	return out
}

// withoutEnvironment is an agent without what is for the owner of an intercept
// only.
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
