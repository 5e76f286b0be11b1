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

// InterceptPrefix starts the keys of the registers that are intercepts: the
// rest is the intercept's id, and the value is its name or, when it is not
// there, empty.
const InterceptPrefix = "intercept/"

// intercepts is a client that arrives, makes, looks at and removes intercepts
// on a workload of its own, and departs.
func (w *worker) intercepts(ctx context.Context) {
	conns := w.conns()
	app := workload(w.number % w.l.cfg.Intercepts)
	for life := 0; w.pause(ctx, time.Second); life++ {
		l := check.Life{Period: clientPeriod}
		name := fmt.Sprintf("%s-%d", w.name, life)
		if !w.arrive(ctx, conns, &l, func(ctx context.Context, c managersvc.ManagerClient) (*manager.SessionInfo, error) {
			return c.ArriveAsClient(ctx, &manager.ClientInfo{Name: name, InstallId: name, Product: product, Version: version})
		}) {
			continue
		}
		open := true
		for n := 0; open && n < 10; n++ {
			open = w.intercept(ctx, conns, &l, name, app, fmt.Sprintf("i%d-%d-%d", w.number, life, n))
		}
		w.depart(ctx, conns, &l)
		w.l.life(l)
	}
}

// intercept is the life of one intercept; false: the session is to end.
func (w *worker) intercept(ctx context.Context, conns []*grpc.ClientConn, l *check.Life, client, app, name string) bool {
	key := InterceptPrefix + l.ID + ":" + name
	session := &manager.SessionInfo{SessionId: l.ID}
	req := &manager.CreateInterceptRequest{Session: session, InterceptSpec: &manager.InterceptSpec{
		Name: name, Client: client, Agent: app, Namespace: namespace, Mechanism: "tcp", TargetHost: "127.0.0.1", TargetPort: 8080,
		ContainerPort: 8080, Protocol: "TCP",
	}}
	made := w.change(ctx, conns, key, name, "create", func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := managersvc.NewManagerClient(cc).CreateIntercept(ctx, req)
		return err
	})
	if made == check.Failed {
		// Its workload has no agent right now, or an intercept of before is in
		// the way.
		return w.pause(ctx, 500*time.Millisecond) && w.remain(ctx, conns, l)
	}
	looks := 1 + w.rnd.IntN(5)
	for range looks {
		if !w.pause(ctx, 100*time.Millisecond) {
			break
		}
		w.look(ctx, conns, key, session, name)
	}
	alive := w.remain(ctx, conns, l)
	w.change(context.WithoutCancel(ctx), conns, key, "", "remove", func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := managersvc.NewManagerClient(cc).RemoveIntercept(ctx, &manager.RemoveInterceptRequest2{Session: session, Name: name})
		return err
	})
	w.look(ctx, conns, key, session, name)
	return alive && ctx.Err() == nil
}

// change makes or removes an intercept.
func (w *worker) change(ctx context.Context, conns []*grpc.ClientConn, key, value, what string,
	call func(context.Context, *grpc.ClientConn) error,
) check.Outcome {
	o := check.Op{Client: w.number, Kind: check.Put, Key: key, Value: value, Call: w.l.now()}
	a := w.write(ctx, conns, call)
	w.l.count(what, a.result)
	o.Return, o.Server, o.Tries, o.Result = w.l.now(), a.server, a.tries, a.result
	if a.result == check.Unknown {
		o.Return = check.Never
	}
	switch code := errs.Code(a.err); {
	case a.result != check.Failed || a.tries == 0 || passing(a.err):
	case code != codes.NotFound && code != codes.FailedPrecondition:
		w.l.unexpected("%s: %s", what, text(a.err))
	}
	w.keep(o)
	return a.result
}

// look reads an intercept.
func (w *worker) look(ctx context.Context, conns []*grpc.ClientConn, key string, session *manager.SessionInfo, name string) {
	o := check.Op{Client: w.number, Kind: check.Get, Key: key, Call: w.l.now()}
	a, ok := w.read(ctx, conns, "linearizable", func(ctx context.Context, cc *grpc.ClientConn) error {
		_, err := managersvc.NewManagerClient(cc).GetIntercept(ctx, &manager.GetInterceptRequest{Session: session, Name: name})
		return err
	})
	if !ok {
		return
	}
	o.Return, o.Server, o.Result = w.l.now(), a.server, a.result
	switch {
	case a.err == nil:
		o.Value = name
	case errs.Reason(a.err) == "INTERCEPT_NOT_FOUND":
		o.Result = check.OK
	case !passing(a.err) && outcome(a.err) != check.Unknown:
		w.l.unexpected("look at an intercept: %s", text(a.err))
	}
	w.l.count("look", o.Result)
	w.keep(o)
}

// keep records an operation that is counted under another name.
func (w *worker) keep(o check.Op) {
	w.l.mu.Lock()
	defer w.l.mu.Unlock()
	w.l.hist.Ops = append(w.l.hist.Ops, o)
}
