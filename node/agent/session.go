package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/node/link"
	"trivet/node/workload"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

const (
	// remainEvery keeps a session alive with two attempts to spare: the
	// manager gives one up after 70 s.
	remainEvery = 20 * time.Second
	// callTimeout bounds a call. A server without a leader holds writes for
	// five seconds; one that hangs is cut off by the pool.
	callTimeout = 15 * time.Second
	// departTimeout is how long saying goodbye may take.
	departTimeout = time.Second
	// refusedMin and refusedMax are the wait after a refusal that has nothing
	// to do with the server, such as of a pod that the node has yet to report.
	refusedMin = 50 * time.Millisecond
	refusedMax = 2 * time.Second

	product   = "trivet"
	mechanism = "tcp"
)

// errStreamEnded says that a server ended a watch without an error: it does so
// when the session has ended.
var errStreamEnded = status.Error(codes.NotFound, "the server ended the session's stream")

// sessionKeeper keeps an agent's session at the manager.
type sessionKeeper struct {
	pod     *workload.Pod
	version string
	pool    *link.Pool
	logger  *slog.Logger
	metrics *Metrics
	// id is where connections find the session.
	id *atomic.Pointer[string]
	// push tells the actor; it waits for room.
	push func(context.Context, Msg) error
}

// run keeps the session until ctx ends.
func (k *sessionKeeper) run(ctx context.Context) {
	backoff := link.Backoff{}
	refused := link.Backoff{Min: refusedMin, Max: refusedMax}
	for ctx.Err() == nil {
		server := k.pool.Current()
		held, err := k.hold(ctx, server)
		if ctx.Err() != nil {
			return
		}
		wait := &backoff
		switch {
		case status.Code(err) == codes.NotFound:
			// The session has ended, not the server: arrive again.
			k.id.Store(nil)
			k.logger.Warn("agent's session has ended", "server", server.Addr(), "err", link.Describe(err))
		case link.IsGone(err):
			k.pool.Failed(server, err)
			if held {
				k.logger.Info("agent lost its server", "server", server.Addr(), "err", link.Describe(err))
			}
		default:
			// Another server would say the same.
			wait = &refused
			k.logger.Warn("manager refuses the agent", "server", server.Addr(), "err", link.Describe(err))
		}
		if held {
			backoff.Reset()
			refused.Reset()
		}
		if wait.Wait(ctx) != nil {
			return
		}
	}
}

// hold resumes or begins the session at a server and follows it until a stream
// ends. held tells whether the server told this agent about intercepts.
func (k *sessionKeeper) hold(ctx context.Context, server *link.Server) (held bool, err error) {
	conn, err := server.Control()
	if err != nil {
		return false, err
	}
	client := managersvc.NewManagerClient(conn)
	id, err := k.enter(ctx, client)
	if err != nil {
		return false, err
	}
	k.id.Store(&id)
	if err := k.push(ctx, arrived{}); err != nil {
		return false, err
	}
	session := &manager.SessionInfo{SessionId: id}
	var told atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return k.follow(ctx, client, session, func() {
			told.Store(true)
			k.metrics.sessions.Inc()
			k.pool.Worked(server)
			k.logger.Info("agent has a session", "server", server.Addr(), "session", id)
		})
	})
	group.Go(func() error { return k.ignoreDials(ctx, client, session) })
	group.Go(func() error { return k.remain(ctx, client, session) })
	err = group.Wait()
	if told.Load() {
		k.metrics.sessions.Dec()
	}
	return told.Load(), err
}

// enter returns the session's id: the present one if the server knows it, or
// that of a new one.
func (k *sessionKeeper) enter(ctx context.Context, client managersvc.ManagerClient) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info := k.info()
	if id := k.id.Load(); id != nil {
		_, err := client.ReconnectAgent(ctx, &manager.ReconnectAgentRequest{
			Session: &manager.SessionInfo{SessionId: *id}, Agent: info,
		})
		switch status.Code(err) {
		case codes.OK:
			k.metrics.arrivals.WithLabelValues("reconnect").Inc()
			return *id, nil
		case codes.NotFound, codes.Unimplemented: // ended, or not known how to
		default:
			return "", fmt.Errorf("resume session: %w", err)
		}
	}
	if _, err := client.Version(ctx, &emptypb.Empty{}); err != nil {
		return "", fmt.Errorf("ask for the manager's version: %w", err)
	}
	arrival, end := outlive(ctx, departTimeout)
	defer end()
	session, err := client.ArriveAsAgent(arrival, info)
	if err != nil {
		return "", fmt.Errorf("arrive as agent of %s.%s: %w", info.GetName(), info.GetNamespace(), err)
	}
	if session.GetSessionId() == "" {
		return "", status.Error(codes.Internal, "the manager gave the agent no session")
	}
	k.metrics.arrivals.WithLabelValues("arrive").Inc()
	return session.GetSessionId(), nil
}

// outlive returns a context that ends the given time after ctx was cancelled,
// or after callTimeout. An arrival that is cut off may have made a session
// that nobody knows of, and so nobody would end.
func outlive(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(by, cancel)
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// info is how the agent introduces itself.
func (k *sessionKeeper) info() *manager.AgentInfo {
	p := k.pod
	info := &manager.AgentInfo{
		Name: p.Workload, Namespace: p.Namespace, Kind: p.Kind,
		PodName: p.Name, PodIp: p.IP.String(), PodUid: p.UID,
		Product: product, Version: k.version,
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: mechanism, Product: product, Version: k.version}},
		Containers: map[string]*manager.AgentInfo_ContainerInfo{},
	}
	for _, c := range p.Containers {
		env, err := appEnvironment(c)
		if err != nil {
			k.logger.Warn("environment is incomplete", "container", c.Name, "err", err)
		}
		info.Containers[c.Name] = &manager.AgentInfo_ContainerInfo{Environment: env}
	}
	return info
}

// follow passes the snapshots of intercepts to the actor, and says when the
// first one has come.
func (k *sessionKeeper) follow(
	ctx context.Context, client managersvc.ManagerClient, session *manager.SessionInfo, first func(),
) error {
	stream, err := client.WatchIntercepts(ctx, session)
	if err != nil {
		return err
	}
	for {
		snap, err := stream.Recv()
		if err != nil {
			return streamErr(err)
		}
		if first != nil {
			first()
			first = nil
		}
		if err := k.push(ctx, snapshot{intercepts: snap.GetIntercepts()}); err != nil {
			return err
		}
	}
}

// ignoreDials keeps the stream of requests to dial open.
func (k *sessionKeeper) ignoreDials(ctx context.Context, client managersvc.ManagerClient, session *manager.SessionInfo) error {
	stream, err := client.WatchDial(ctx, session)
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return streamErr(err)
		}
		k.metrics.dials.Inc()
	}
}

// remain keeps the session alive. Only the news that it has ended is an error:
// for everything else there are the streams.
func (k *sessionKeeper) remain(ctx context.Context, client managersvc.ManagerClient, session *manager.SessionInfo) error {
	tick := time.NewTicker(remainEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		call, cancel := context.WithTimeout(ctx, callTimeout)
		_, err := client.Remain(call, &manager.RemainRequest{Session: session})
		cancel()
		if status.Code(err) == codes.NotFound {
			return err
		}
		if err != nil && ctx.Err() == nil {
			k.logger.Warn("session was not prolonged", "err", link.Describe(err))
		}
	}
}

func streamErr(err error) error {
	if errors.Is(err, io.EOF) {
		return errStreamEnded
	}
	return err
}

// depart ends the session, if that can be done in a moment.
func depart(ctx context.Context, pool *link.Pool, id string) error {
	ctx, cancel := context.WithTimeout(ctx, departTimeout)
	defer cancel()
	conn, err := pool.Current().Control()
	if err != nil {
		return err
	}
	_, err = managersvc.NewManagerClient(conn).Depart(ctx, &manager.SessionInfo{SessionId: id})
	return err
}
