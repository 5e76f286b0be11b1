package link

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/internal/errs"
	"trivet/node/workload"
	nodev1 "trivet/proto/trivet/node/v1"
	"trivet/proto/trivet/node/v1/nodesvc"
)

// Bounds of the wait after a server has refused the node itself: its name, its
// cluster, its report.
const (
	refusedMin = 500 * time.Millisecond
	refusedMax = 10 * time.Second
)

// Control is the node's own conversation with the manager.
type Control struct {
	Pool   *Pool
	Ledger *Ledger
	Source workload.Source
	// Hello is what the node says of itself; Highest is filled in.
	Hello *nodev1.NodeHello
	// Orders is called with orders that were accepted, one call at a time.
	Orders func(*nodev1.NodeOrders)
	// Connected is called when the first orders of a stream have come, and
	// when that stream is over.
	Connected func(bool)
	Logger    *slog.Logger
	Metrics   *Metrics
}

// Run keeps a stream open until ctx ends.
func (c *Control) Run(ctx context.Context) {
	backoff := Backoff{}
	refused := Backoff{Min: refusedMin, Max: refusedMax}
	for ctx.Err() == nil {
		server := c.Pool.Current()
		worked, err := c.sync(ctx, server)
		if ctx.Err() != nil {
			return
		}
		if worked {
			backoff.Reset()
			refused.Reset()
			c.Logger.Info("lost the manager's orders, the last ones hold", "server", server.Addr(), "err", Describe(err))
		}
		wait := &backoff
		if !IsGone(err) {
			// Another server may know better, but that is no reason to hurry.
			wait = &refused
			c.Logger.Error("manager refuses the node", "server", server.Addr(), "err", Describe(err))
		}
		c.Pool.Failed(server, err)
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// sync opens a stream and follows it to its end. worked tells whether orders
// came by it.
func (c *Control) sync(ctx context.Context, server *Server) (worked bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := server.Control()
	if err != nil {
		return false, err
	}
	stream, err := nodesvc.NewNodeControlClient(conn).Sync(ctx)
	if err != nil {
		return false, err
	}
	hello := proto.CloneOf(c.Hello)
	hello.Highest = c.Ledger.Last().GetFence()
	set, changed := c.Source.Get()
	first := &nodev1.NodeReport{Hello: hello, Workloads: &nodev1.Workloads{Workloads: set.Report()}}
	if err := sendErr(stream, stream.Send(first)); err != nil {
		return false, err
	}

	// The sender stops with the stream, the stream with the sender.
	sender := make(chan error, 1)
	go func() {
		err := c.report(ctx, stream, changed)
		cancel()
		sender <- err
	}()
	defer func() {
		cancel()
		if sent := <-sender; sent != nil && !errors.Is(sent, context.Canceled) {
			err = sent
		}
		if worked {
			c.Metrics.connected.Set(0)
			c.Connected(false)
		}
	}()
	for {
		orders, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			err = errs.New(codes.Unavailable, "STREAM_ENDED", "the server ended the stream of orders")
		}
		if err != nil {
			return worked, err
		}
		switch err := c.Ledger.Accept(orders); errs.Reason(err) {
		case ReasonForeignCluster:
			return worked, err
		case ReasonStaleOrders:
			c.Logger.Warn("orders were refused", "server", server.Addr(), "err", err)
			continue
		case "":
		default:
			c.Logger.Error("orders hold for this process only", "err", err)
		}
		if !worked {
			worked = true
			c.Pool.Worked(server)
			c.Metrics.connected.Set(1)
			c.Connected(true)
			c.Logger.Info("the manager gives orders", "server", server.Addr(), "agents", len(orders.GetAgents()))
		}
		c.Orders(orders)
	}
}

// report sends what runs here whenever it has changed.
func (c *Control) report(ctx context.Context, stream nodesvc.NodeControl_SyncClient, changed <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
		var set *workload.Set
		set, changed = c.Source.Get()
		err := stream.Send(&nodev1.NodeReport{Workloads: &nodev1.Workloads{Workloads: set.Report()}})
		if err != nil {
			return nil // the receiver learns why
		}
	}
}

// sendErr turns the io.EOF of a failed Send into what ended the stream.
func sendErr(stream nodesvc.NodeControl_SyncClient, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}
