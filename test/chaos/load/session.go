package load

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	"trivet/test/chaos/check"
)

const (
	namespace = "chaos"
	product   = "chaos"
	version   = "v2.20.0"
	// agentPeriod is what a session of the newer generation is owed.
	agentPeriod = 70 * time.Second
	// clientPeriod likewise.
	clientPeriod = 24 * time.Hour
	// remainEvery is far below the period, and long enough that a period cut
	// to a tenth would end in between.
	remainEvery = 10 * time.Second
)

// workload is the name of the app of one intercept client; the agents spread
// over them.
func workload(n int) string { return fmt.Sprintf("app-%d", n) }

// agents is a sequence of agents, each with a pod of its own: it arrives, shows
// signs of life for a while, and then departs or falls silent.
func (w *worker) agents(ctx context.Context) {
	apps := max(1, w.l.cfg.Intercepts)
	for life := 0; w.pause(ctx, time.Second); life++ {
		uid := fmt.Sprintf("pod-%x-%d-%d", w.l.cfg.Seed, w.number, life)
		app := workload((w.number + life) % apps)
		conns, done, err := w.l.cfg.Access.Agent(namespace, app, uid)
		if err != nil {
			w.l.unexpected("connect an agent: %v", err)
			return
		}
		w.agent(ctx, conns, app, uid)
		done()
	}
}

func (w *worker) agent(ctx context.Context, conns []*grpc.ClientConn, app, uid string) {
	info := &manager.AgentInfo{
		Name: app, Namespace: namespace, Kind: "Deployment", PodName: uid, PodUid: uid, Product: product, Version: version,
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: product, Version: version}},
	}
	l := check.Life{Period: agentPeriod}
	if !w.arrive(ctx, conns, &l, func(ctx context.Context, c managersvc.ManagerClient) (*manager.SessionInfo, error) {
		return c.ArriveAsAgent(ctx, info)
	}) {
		return
	}
	defer func() { w.l.life(l) }()
	stays := time.Duration(15+w.rnd.IntN(45)) * time.Second
	end := time.Now().Add(stays)
	for time.Now().Before(end) {
		if !w.pause(ctx, remainEvery) || !w.remain(ctx, conns, &l) {
			return
		}
	}
	if w.rnd.IntN(2) == 0 {
		w.depart(ctx, conns, &l)
	}
}

// arrive starts a session; false: nobody knows whether there is one.
func (w *worker) arrive(ctx context.Context, conns []*grpc.ClientConn, l *check.Life,
	call func(context.Context, managersvc.ManagerClient) (*manager.SessionInfo, error),
) bool {
	var info *manager.SessionInfo
	began := w.l.now()
	a := w.write(ctx, conns, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		info, err = call(ctx, managersvc.NewManagerClient(cc))
		return err
	})
	w.l.count("arrive", a.result)
	if a.result != check.OK {
		if a.tries > 0 && a.result == check.Failed && !passing(a.err) {
			w.l.unexpected("arrive: %s", text(a.err))
		}
		return false
	}
	l.ID = info.GetSessionId()
	l.Signs = append(l.Signs, check.Span{Call: began, Return: w.l.now()})
	return true
}

// remain shows a sign of life; false: the session is gone.
func (w *worker) remain(ctx context.Context, conns []*grpc.ClientConn, l *check.Life) bool {
	began := w.l.now()
	a, ok := w.read(ctx, conns, "default", func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := managersvc.NewManagerClient(cc).Remain(ctx, &manager.RemainRequest{Session: &manager.SessionInfo{SessionId: l.ID}})
		return err
	})
	if !ok {
		return true
	}
	w.l.count("remain", a.result)
	switch {
	case a.err == nil:
		l.Signs = append(l.Signs, check.Span{Call: began, Return: w.l.now()})
	case errs.Code(a.err) == codes.NotFound:
		l.Gone = append(l.Gone, w.l.now())
		return false
	case errs.Code(a.err) == codes.Aborted || passing(a.err) || outcome(a.err) == check.Unknown:
	default:
		w.l.unexpected("remain: %s", text(a.err))
	}
	return true
}

func (w *worker) depart(ctx context.Context, conns []*grpc.ClientConn, l *check.Life) {
	l.DepartCall = w.l.now()
	a := w.write(context.WithoutCancel(ctx), conns, func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := managersvc.NewManagerClient(cc).Depart(ctx, &manager.SessionInfo{SessionId: l.ID})
		return err
	})
	w.l.count("depart", a.result)
	if a.result != check.OK {
		return
	}
	l.Departed = w.l.now()
	if w.pause(ctx, 2*check.Lag) {
		w.remain(ctx, conns, l) // which must be refused by now
	}
}
