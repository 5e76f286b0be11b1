package operatorapi

import (
	"math/rand/v2"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/fault"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// maxChanges bounds the changes of one response.
const maxChanges = 500

// skippedOneIn events is left out by the deliberate bug of that name.
const skippedOneIn = 50

// watchable lists the tables that can be watched, by the names that requests
// use. The writers' answers make no events, and the meta row holds keys.
var watchable = map[string]fsm.Table{
	fsm.TableSessions.String():   fsm.TableSessions,
	fsm.TableIntercepts.String(): fsm.TableIntercepts,
	fsm.TableNodes.String():      fsm.TableNodes,
	fsm.TableWorkloads.String():  fsm.TableWorkloads,
	fsm.TableConfig.String():     fsm.TableConfig,
	fsm.TableServers.String():    fsm.TableServers,
	fsm.TableTokens.String():     fsm.TableTokens,
	fsm.TableIdentities.String(): fsm.TableIdentities,
}

// Watch sends the changes after a revision, on whatever server the caller
// comes to. A caller that resumes on a server that is behind waits for it.
func (s *Service) Watch(req *operatorv1.WatchRequest, stream grpc.ServerStreamingServer[operatorv1.WatchResponse]) error {
	tables := make(map[fsm.Table]bool, len(watchable))
	for _, name := range req.GetTables() {
		t, ok := watchable[name]
		if !ok {
			return errs.New(codes.InvalidArgument, "UNKNOWN_TABLE", "table %q cannot be watched", name).
				WithHint("tables are sessions, intercepts, nodes, workloads, config, servers, tokens and identities")
		}
		tables[t] = true
	}
	if len(tables) == 0 {
		for _, t := range watchable {
			tables[t] = true
		}
	}
	ctx := stream.Context()
	root, err := s.cfg.Core.Read(ctx, engine.Stale, req.GetAfterRevision())
	if err != nil {
		return err
	}
	if err := stream.SendHeader(metadata.Pairs(engine.MetaRevision, strconv.FormatUint(root.Revision(), 10))); err != nil {
		return err
	}
	w := watcher{stream: stream, tables: tables}
	cur := s.cfg.Core.Watch(req.GetAfterRevision())
	if req.GetAfterRevision() == 0 {
		// The ring may reach back to the beginning; the caller wants the state.
		cur = s.cfg.Core.WatchFrom(root)
		if err := w.send(fsm.Batch{Root: root, Events: fsm.Diff(nil, root), Full: true}); err != nil {
			return err
		}
	}
	for {
		select {
		case <-cur.Wait():
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").
				WithHint("go on with another server, after the last revision")
		}
		if err := w.send(cur.Next()); err != nil {
			return err
		}
	}
}

// watcher turns batches into responses.
type watcher struct {
	stream grpc.ServerStreamingServer[operatorv1.WatchResponse]
	tables map[fsm.Table]bool
}

// send sends a batch in one or more responses; only the last one, which
// completes it, has a revision. A batch in which nothing was asked for is left
// out.
func (w *watcher) send(b fsm.Batch) error {
	out := &operatorv1.WatchResponse{Full: b.Full, Difference: b.Resync && !b.Full}
	for _, e := range b.Events {
		if !w.tables[e.Table] || fault.Planted(fault.SkippedEvent) && rand.IntN(skippedOneIn) == 0 {
			continue
		}
		if len(out.GetChanges()) == maxChanges {
			if err := w.stream.Send(out); err != nil {
				return err
			}
			out = &operatorv1.WatchResponse{Difference: out.GetDifference()}
		}
		out.Changes = append(out.Changes, change(e))
	}
	if len(out.GetChanges()) == 0 && !b.Full {
		return nil
	}
	out.Revision = b.Root.Revision()
	return w.stream.Send(out)
}

func change(e fsm.Event) *operatorv1.Change {
	c := &operatorv1.Change{Revision: e.Revision, Table: e.Table.String(), Key: e.Key, Op: e.Op.String()}
	if e.Op == fsm.Delete {
		return c
	}
	c.Hash = rowHash(e.New)
	setRow(c, e.New)
	return c
}

// setRow adds what is shown of a row. Tables that only operators read in lists
// are named by key alone.
func setRow(c *operatorv1.Change, row proto.Message) {
	switch row := row.(type) {
	case *commandv1.SessionRow:
		c.Row = &operatorv1.Change_Session{Session: session(row)}
	case *commandv1.InterceptRow:
		c.Row = &operatorv1.Change_Intercept{Intercept: intercept(row)}
	case *commandv1.NodeRow:
		c.Row = &operatorv1.Change_Node{Node: node(row)}
	case *commandv1.ConfigRow:
		c.Row = &operatorv1.Change_Config{Config: &operatorv1.Config{
			Key: row.GetKey(), Value: row.GetValue(), ModifyRevision: row.GetModifyRevision(),
		}}
	case *commandv1.ServerRow:
		c.Row = &operatorv1.Change_Server{Server: &operatorv1.Server{
			Id: row.GetId(), Name: row.GetName(), Address: row.GetAddress(), Version: row.GetVersion(),
		}}
	case *commandv1.WorkloadRow:
		c.Row = &operatorv1.Change_Workload{Workload: &operatorv1.Workload{
			Namespace: row.GetNamespace(), Name: row.GetName(), Kind: row.GetKind(), Pods: uint32(len(row.GetPods())),
		}}
	}
}
