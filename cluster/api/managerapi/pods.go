package managerapi

import (
	"net/netip"

	"google.golang.org/grpc"

	"trivet/fsm"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// WatchAgentPods follows the pods that have agents, in the namespace that the
// client is connected to. Each message has all of them, by session id.
func (s *Service) WatchAgentPods(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.AgentPodInfoSnapshot]) error {
	row, err := s.session(stream.Context(), info, commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, "")
	if err != nil {
		return err
	}
	return followItems(s, stream, row.GetId(), gather, podItems(row.GetId(), in),
		func(_ delta[*manager.AgentPodInfo], all sent[*manager.AgentPodInfo]) error {
			return stream.Send(&manager.AgentPodInfoSnapshot{Agents: byKey(all)})
		})
}

// WatchAgentPodsDelta is WatchAgentPods in changes, by session id.
func (s *Service) WatchAgentPodsDelta(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.AgentPodInfoDelta]) error {
	row, err := s.session(stream.Context(), info, commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, "")
	if err != nil {
		return err
	}
	return s.podDeltas(row, in, stream)
}

// WatchAgentPodsInNamespacesDelta is WatchAgentPodsDelta for the namespaces
// that the request lists.
func (s *Service) WatchAgentPodsInNamespacesDelta(req *manager.AgentsRequest, stream grpc.ServerStreamingServer[manager.AgentPodInfoDelta]) error {
	row, err := s.session(stream.Context(), req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, req.GetNamespaces()...)
	if err != nil {
		return err
	}
	return s.podDeltas(row, in, stream)
}

func (s *Service) podDeltas(row *commandv1.SessionRow, in namespaces, stream grpc.ServerStreamingServer[manager.AgentPodInfoDelta]) error {
	return followItems(s, stream, row.GetId(), gather, podItems(row.GetId(), in),
		func(d delta[*manager.AgentPodInfo], _ sent[*manager.AgentPodInfo]) error {
			return stream.Send(&manager.AgentPodInfoDelta{Upserts: d.upserts, Removals: d.removals})
		})
}

// podItems shows the pods of agents to a client. All pods of a workload count
// as intercepted when the client intercepts it: every agent of a workload serves
// its intercepts, not only the one that approved them.
func podItems(client string, in namespaces) items[*manager.AgentPodInfo] {
	show := func(root *fsm.Root, row *commandv1.SessionRow) *manager.AgentPodInfo {
		a := row.GetAgent()
		p := &manager.AgentPodInfo{
			PodName: a.GetPodName(), Namespace: a.GetNamespace(), ApiPort: a.GetApiPort(), WorkloadName: a.GetName(), PodId: a.GetPodUid(),
		}
		if ip, err := netip.ParseAddr(a.GetPodIp()); err == nil {
			p.PodIp = ip.Unmap().AsSlice()
		}
		for i := range root.InterceptsOf(client) {
			if i.GetSpec().GetNamespace() == a.GetNamespace() && i.GetSpec().GetAgent() == a.GetName() && i.GetDisposition() != manager.InterceptDispositionType_REMOVED {
				p.Intercepted = true
				break
			}
		}
		return p
	}
	shown := func(row *commandv1.SessionRow) bool { return isAgentIn(row, in) }
	return items[*manager.AgentPodInfo]{
		touched: func(root *fsm.Root, e fsm.Event, key func(string)) {
			switch e.Table {
			case fsm.TableSessions:
				if eitherRow(e, shown) {
					key(e.Key)
				}
			case fsm.TableIntercepts:
				eitherRow(e, func(row *commandv1.InterceptRow) bool {
					if row.GetSessionId() == client && in.has(row.GetSpec().GetNamespace()) {
						for a := range root.AgentsOf(row.GetSpec().GetNamespace(), row.GetSpec().GetAgent()) {
							key(a.GetId())
						}
					}
					return false // look at both
				})
			}
		},
		item: func(root *fsm.Root, id string) (*manager.AgentPodInfo, bool) {
			row, ok := root.Session(id)
			if !ok || !shown(row) {
				return nil, false
			}
			return show(root, row), true
		},
		all: func(root *fsm.Root, yield func(string, *manager.AgentPodInfo)) {
			for row := range root.Sessions {
				if shown(row) {
					yield(row.GetId(), show(root, row))
				}
			}
		},
	}
}
