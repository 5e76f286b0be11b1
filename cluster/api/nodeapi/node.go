// Package nodeapi serves trivet.node.v1.NodeControl: the stream that keeps a
// node and the manager in step.
//
// Up come hello and workloads, which become commands; down go orders, which
// are the state's complete wish for that node, fenced by cluster, epoch, term
// and revision. The handler first waits until this server knows everything the
// node has seen, so that a node never hears an older wish after a newer one.
package nodeapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/cluster/attach"
	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/cluster/settings"
	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
)

const (
	// maxWorkloads and maxPods bound one report.
	maxWorkloads = 10_000
	maxPods      = 10_000
	catchUp      = 10 * time.Second
)

// Core is what the handler needs of the engine.
type Core interface {
	Propose(ctx context.Context, identity string, req *engine.Request, cmd *commandv1.Command) (*commandv1.Result, error)
	Read(ctx context.Context, level engine.Level, seen uint64) (*fsm.Root, error)
	Root() *fsm.Root
	WatchFrom(root *fsm.Root) *fsm.Cursor
}

// Config of a Service.
type Config struct {
	Core     Core
	Registry *attach.Registry
	// Stopping is closed when the server begins to shut down.
	Stopping <-chan struct{}
	Logger   *slog.Logger
}

// Service is the node control service.
type Service struct {
	nodesvc.UnimplementedNodeControlServer
	cfg Config
}

// New makes the service.
func New(cfg Config) *Service { return &Service{cfg: cfg} }

// AttachmentID is the name under which a node's stream is registered.
func AttachmentID(node string) string { return "node:" + node }

// Sync serves one node until its stream ends.
func (s *Service) Sync(stream grpc.BidiStreamingServer[nodev1.NodeReport, nodev1.NodeOrders]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	me := authz.Caller(ctx)
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	hello := first.GetHello()
	if hello == nil {
		return errs.New(codes.InvalidArgument, "MISSING_FIELD", "the first report has no hello")
	}
	if hello.GetName() != me.Name {
		return errs.New(codes.PermissionDenied, "NOT_YOUR_NAME", "the certificate is for node %q, the hello is from %q", me.Name, hello.GetName()).
			WithHint("set the node's name to that in its certificate")
	}
	if err := s.catchUp(ctx, hello.GetHighest()); err != nil {
		return err
	}
	if _, err := s.cfg.Core.Propose(ctx, me.String(), nil, &commandv1.Command{Op: &commandv1.Command_PutNode{PutNode: &commandv1.PutNode{
		Node: &commandv1.NodeRow{
			Name: hello.GetName(), BootId: hello.GetBootId(), Version: hello.GetVersion(), StealBackend: hello.GetStealBackend(),
			StealReason: hello.GetStealReason(), Kernel: hello.GetKernel(), Identity: me.String(),
		},
	}}}); err != nil {
		return err
	}
	if err := s.report(ctx, first); err != nil {
		return err
	}
	detach := s.cfg.Registry.OpenWatch(AttachmentID(me.Name))
	defer detach(false)

	reports := make(chan error, 1)
	go func() { reports <- s.receive(ctx, stream) }()
	err = s.orders(ctx, stream, reports)
	cancel()
	return err
}

// catchUp waits until this server knows what the node knows.
func (s *Service) catchUp(ctx context.Context, highest *nodev1.Fence) error {
	if highest == nil {
		return nil
	}
	meta := s.cfg.Core.Root().Meta()
	if id := meta.GetClusterId(); highest.GetClusterId() != "" && id != "" && highest.GetClusterId() != id {
		return errs.New(codes.FailedPrecondition, "FOREIGN_CLUSTER", "the node belongs to cluster %q, this is %q", highest.GetClusterId(), id).
			WithHint("remove the node's state directory if it has moved on purpose")
	}
	if highest.GetRestoreEpoch() < meta.GetRestoreEpoch() {
		// The state was restored since; revisions from before say nothing.
		return nil
	}
	wctx, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	_, err := s.cfg.Core.Read(wctx, engine.Default, highest.GetRevision())
	return err
}

func (s *Service) receive(ctx context.Context, stream grpc.BidiStreamingServer[nodev1.NodeReport, nodev1.NodeOrders]) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.report(ctx, r); err != nil {
			return err
		}
	}
}

func (s *Service) report(ctx context.Context, r *nodev1.NodeReport) error {
	if r.GetWorkloads() == nil {
		return nil
	}
	me := authz.Caller(ctx)
	ws := r.GetWorkloads().GetWorkloads()
	pods := 0
	for _, w := range ws {
		pods += len(w.GetPods())
	}
	if len(ws) > maxWorkloads || pods > maxPods {
		return errs.New(codes.InvalidArgument, "TOO_LARGE", "%d workloads with %d pods in one report, the limits are %d and %d", len(ws), pods, maxWorkloads, maxPods)
	}
	_, err := s.cfg.Core.Propose(ctx, me.String(), nil, &commandv1.Command{Op: &commandv1.Command_ReportWorkloads{
		ReportWorkloads: &commandv1.ReportWorkloads{Node: me.Name, Workloads: ws},
	}})
	return err
}

// orders sends the wish whenever it changes, until the reports end.
func (s *Service) orders(ctx context.Context, stream grpc.BidiStreamingServer[nodev1.NodeReport, nodev1.NodeOrders], reports <-chan error) error {
	node := authz.Caller(stream.Context()).Name
	root := s.cfg.Core.Root()
	cur := s.cfg.Core.WatchFrom(root)
	var last *nodev1.NodeOrders
	levelEnds := time.NewTimer(0)
	defer levelEnds.Stop()
	for {
		if next := s.wish(root, node); last == nil || !sameWish(last, next) {
			if err := stream.Send(next); err != nil {
				return err
			}
			last = next
		}
		levelEnds.Stop()
		if until := last.GetLogLevel().GetUntil(); until != 0 {
			// Another level may take its place.
			levelEnds.Reset(time.Until(time.Unix(0, until)))
		}
		for again := false; !again; {
			select {
			case err := <-reports:
				return err
			case <-levelEnds.C:
				again = true
				continue
			case <-cur.Wait():
			case <-ctx.Done():
				return ctx.Err()
			case <-s.cfg.Stopping:
				return errs.New(codes.Unavailable, "SERVER_STOPPING", "this server is shutting down").WithHint("reconnect to another server")
			}
			batch := cur.Next()
			root = batch.Root
			again = batch.Resync || slices.ContainsFunc(batch.Events, concernsNodes)
		}
	}
}

// concernsNodes says whether an event may change the wish for a node.
func concernsNodes(e fsm.Event) bool {
	return e.Table == fsm.TableWorkloads || e.Table == fsm.TableConfig && settings.IsLogLevel(e.Key)
}

// sameWish compares orders without their fences.
func sameWish(a, b *nodev1.NodeOrders) bool {
	return proto.Equal(&nodev1.NodeOrders{Agents: a.GetAgents(), LogLevel: a.GetLogLevel()},
		&nodev1.NodeOrders{Agents: b.GetAgents(), LogLevel: b.GetLogLevel()})
}

// wish is everything the manager wants of a node.
func (s *Service) wish(root *fsm.Root, node string) *nodev1.NodeOrders {
	meta := root.Meta()
	out := &nodev1.NodeOrders{Fence: &nodev1.Fence{
		ClusterId: meta.GetClusterId(), RestoreEpoch: meta.GetRestoreEpoch(),
		// The term in which the newest entry was written, not the one this
		// server is in: two servers that show the same state must agree.
		Term: root.Position().Term, Revision: root.Revision(),
	}}
	if l := settings.LogLevelOf(root, time.Now(), settings.NodeLogLevel(node), settings.KeyLogLevel); l.Level != "" {
		out.LogLevel = &nodev1.LogLevel{Level: l.Level}
		if !l.Until.IsZero() {
			out.LogLevel.Until = l.Until.UnixNano()
		}
	}
	for w := range root.Workloads {
		if !w.GetAgentWanted() {
			continue
		}
		for _, p := range w.GetPods() {
			if p.GetNode() == node {
				out.Agents = append(out.Agents, &nodev1.WantedAgent{Namespace: w.GetNamespace(), Workload: w.GetName(), PodUid: p.GetUid()})
			}
		}
	}
	return out
}
