package agent

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/internal/rt"
	"trivet/node/link"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

const (
	// reviewAgain is how long after an answered review a snapshot that still
	// shows the intercept waiting is taken for old.
	reviewAgain = 2 * time.Second
	// reviewRetry is the wait after a review that did not reach a server.
	reviewRetry = 100 * time.Millisecond
)

// review is what was said, or is being said, about a waiting intercept.
type review struct {
	sending bool
	// until is when it may be said again.
	until time.Time
}

// approval says that the pod serves the intercept.
func (a *actor) approval(s served) *manager.ReviewInterceptRequest {
	req := &manager.ReviewInterceptRequest{
		Disposition:       manager.InterceptDispositionType_ACTIVE,
		Message:           "served on node " + a.cfg.Node + " by " + a.pod.backend.Name(),
		PodIp:             a.cfg.Pod.IP.String(),
		MechanismArgsDesc: argsDescription,
	}
	for _, c := range a.cfg.Pod.Containers {
		if c.Name != s.Container {
			continue
		}
		env, err := appEnvironment(c)
		if err != nil {
			a.cfg.Logger.Warn("environment is incomplete", "container", c.Name, "err", err)
		}
		req.Environment = env
	}
	return req
}

// disapproval says that the pod does not serve the intercept, and why.
func disapproval(message string) *manager.ReviewInterceptRequest {
	return &manager.ReviewInterceptRequest{
		Disposition: manager.InterceptDispositionType_AGENT_ERROR, Message: message,
	}
}

// review sends a review, unless that was done a moment ago.
func (a *actor) review(ctx *rt.Ctx[Msg], intercept string, req *manager.ReviewInterceptRequest) {
	id := a.session.Load()
	if id == nil || !a.current {
		return // another snapshot is to come
	}
	r := a.reviews[intercept]
	if r != nil && (r.sending || time.Now().Before(r.until)) {
		return
	}
	a.reviews[intercept] = &review{sending: true}
	req.Id, req.Session = intercept, &manager.SessionInfo{SessionId: *id}
	a.cfg.Metrics.reviews.WithLabelValues(req.GetDisposition().String()).Inc()
	a.cfg.Logger.Info("intercept is reviewed", "intercept", intercept,
		"disposition", req.GetDisposition().String(), "message", req.GetMessage())
	pool := a.cfg.Pool
	ctx.Go("review", func(ctx context.Context) Msg {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		_, err := send(ctx, pool, req)
		return reviewed{intercept, err}
	})
}

func send(ctx context.Context, pool *link.Pool, req *manager.ReviewInterceptRequest) (*emptypb.Empty, error) {
	conn, err := pool.Current().Control()
	if err != nil {
		return nil, err
	}
	return managersvc.NewManagerClient(conn).ReviewIntercept(ctx, req)
}

func (a *actor) onReviewed(ctx *rt.Ctx[Msg], m reviewed) {
	r := a.reviews[m.intercept]
	if r == nil {
		return // it stopped waiting meanwhile
	}
	r.sending = false
	wait := reviewAgain
	switch status.Code(m.err) {
	case codes.OK, codes.NotFound: // NotFound: removed meanwhile
	default:
		wait = reviewRetry
		a.cfg.Logger.Warn("review did not reach the manager", "intercept", m.intercept, "err", link.Describe(m.err))
	}
	r.until = time.Now().Add(wait)
	ctx.After(wait, recheck{})
}

// forgetReviews forgets those of intercepts that no longer wait, so that one
// which waits again is reviewed at once.
func (a *actor) forgetReviews() {
	waiting := map[string]bool{}
	for _, info := range a.list {
		if info.GetDisposition() == manager.InterceptDispositionType_WAITING {
			waiting[info.GetId()] = true
		}
	}
	for id := range a.reviews {
		if !waiting[id] {
			delete(a.reviews, id)
		}
	}
}
