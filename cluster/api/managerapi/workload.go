package managerapi

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

// gatherWorkloads is gather for workloads, whose pods come and go in bursts.
const gatherWorkloads = 50 * time.Millisecond

// WatchWorkloads follows the workloads of a namespace: the one that the request
// names or the client is connected to, else all. The first message adds all that
// are there, whatever the request's since says: the state keeps no past.
func (s *Service) WatchWorkloads(req *manager.WorkloadEventsRequest, stream grpc.ServerStreamingServer[manager.WorkloadEventsDelta]) error {
	if req.GetSessionInfo() == nil {
		return errs.New(codes.InvalidArgument, "MISSING_FIELD", "SessionInfo is required")
	}
	row, err := s.session(stream.Context(), req.GetSessionInfo(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return err
	}
	in, err := watchable(stream.Context(), row, req.GetNamespace())
	if err != nil {
		return err
	}
	since := req.GetSince()
	told := make(map[string]*manager.WorkloadInfo)
	return followItems(s, stream, row.GetId(), gatherWorkloads, workloadItems(in), func(d delta[*manager.WorkloadInfo], _ sent[*manager.WorkloadInfo]) error {
		out := &manager.WorkloadEventsDelta{Since: since}
		for _, key := range d.removals {
			out.Events = append(out.Events, &manager.WorkloadEvent{Type: manager.WorkloadEvent_DELETED, Workload: told[key]})
			delete(told, key)
		}
		for _, key := range slices.Sorted(maps.Keys(d.upserts)) {
			e := &manager.WorkloadEvent{Type: manager.WorkloadEvent_MODIFIED, Workload: d.upserts[key]}
			if _, known := told[key]; !known {
				e.Type = manager.WorkloadEvent_ADDED_UNSPECIFIED
			}
			told[key] = e.Workload
			out.Events = append(out.Events, e)
		}
		since = timestamppb.Now()
		return stream.Send(out)
	})
}

// workloadKey orders as the rows are.
func workloadKey(ns, name string) string { return ns + "\x00" + name }

func workloadItems(in namespaces) items[*manager.WorkloadInfo] {
	return items[*manager.WorkloadInfo]{
		touched: func(_ *fsm.Root, e fsm.Event, key func(string)) {
			add := func(ns, name string) bool {
				if in.has(ns) {
					key(workloadKey(ns, name))
				}
				return false // look at both rows
			}
			switch e.Table {
			case fsm.TableWorkloads:
				eitherRow(e, func(w *commandv1.WorkloadRow) bool { return add(w.GetNamespace(), w.GetName()) })
			case fsm.TableIntercepts:
				eitherRow(e, func(i *commandv1.InterceptRow) bool { return add(i.GetSpec().GetNamespace(), i.GetSpec().GetAgent()) })
			case fsm.TableSessions:
				eitherRow(e, func(a *commandv1.SessionRow) bool {
					return a.GetKind() == commandv1.SessionKind_SESSION_KIND_AGENT && add(a.GetAgent().GetNamespace(), a.GetAgent().GetName())
				})
			}
		},
		item: func(root *fsm.Root, key string) (*manager.WorkloadInfo, bool) {
			ns, name, _ := strings.Cut(key, "\x00")
			row, ok := root.Workload(ns, name)
			if !ok {
				return nil, false
			}
			return workloadInfo(root, row), true
		},
		all: func(root *fsm.Root, yield func(string, *manager.WorkloadInfo)) {
			for row := range root.Workloads {
				if in.has(row.GetNamespace()) {
					yield(workloadKey(row.GetNamespace(), row.GetName()), workloadInfo(root, row))
				}
			}
		},
	}
}

// workloadKinds are the kinds of the contract by their names.
var workloadKinds = map[string]manager.WorkloadInfo_Kind{
	"Deployment":  manager.WorkloadInfo_DEPLOYMENT,
	"ReplicaSet":  manager.WorkloadInfo_REPLICASET,
	"StatefulSet": manager.WorkloadInfo_STATEFULSET,
	"Rollout":     manager.WorkloadInfo_ROLLOUT,
}

func workloadInfo(root *fsm.Root, row *commandv1.WorkloadRow) *manager.WorkloadInfo {
	pods := int32(len(row.GetPods()))
	w := &manager.WorkloadInfo{
		Kind: workloadKinds[row.GetKind()], Name: row.GetName(), Namespace: row.GetNamespace(),
		DesiredReplicas: pods, ReadyReplicas: pods, State: manager.WorkloadInfo_AVAILABLE,
	}
	if pods == 0 {
		w.State = manager.WorkloadInfo_PROGRESSING
	}
	for i := range root.InterceptsFor(row.GetNamespace(), row.GetName()) {
		if i.GetDisposition() == manager.InterceptDispositionType_ACTIVE && i.GetParent() == "" {
			w.InterceptClients = append(w.InterceptClients, &manager.WorkloadInfo_Intercept{Client: i.GetSpec().GetClient()})
		}
	}
	slices.SortFunc(w.InterceptClients, func(a, b *manager.WorkloadInfo_Intercept) int {
		return strings.Compare(a.GetClient(), b.GetClient())
	})
	switch {
	case len(w.InterceptClients) > 0:
		w.AgentState = manager.WorkloadInfo_INTERCEPTED
	case haveAgents(root, row.GetNamespace(), row.GetName()) > 0:
		w.AgentState = manager.WorkloadInfo_INSTALLED
	}
	return w
}
