package client

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
)

// restoreGrace is how long a workload may be unknown to a manager that has
// forgotten everything: its nodes have to report first.
const restoreGrace = 30 * time.Second

// restorePause is the time between two attempts to make an intercept again.
const restorePause = time.Second

// confirmTimeout bounds the question whether an intercept is really gone.
const confirmTimeout = 5 * time.Second

func (s *Session) all() []*Intercept {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*Intercept, 0, len(s.intercepts))
	for _, it := range s.intercepts {
		out = append(out, it)
	}
	return out
}

// known is what a reconnect reports: the intercepts as the manager described
// them.
func (s *Session) known() []*manager.InterceptInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*manager.InterceptInfo, 0, len(s.intercepts))
	for _, it := range s.intercepts {
		if it.stage == made && it.info != nil && !it.over {
			out = append(out, it.info)
		}
	}
	return out
}

// drop forgets an intercept that is over or never was.
func (s *Session) drop(it *Intercept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.intercepts[it.spec.Name] == it {
		delete(s.intercepts, it.spec.Name)
	}
}

// observe takes in what the manager says of the session's intercepts. One that
// is missing is looked up before it counts as removed: the snapshot of a
// server that lags behind can be older than the intercept.
func (s *Session) observe(ctx context.Context, snapshot []*manager.InterceptInfo) {
	seen := map[string]*manager.InterceptInfo{}
	session := s.ID()
	for _, info := range snapshot {
		if id := info.GetClientSession().GetSessionId(); id == "" || id == session {
			seen[info.GetSpec().GetName()] = info
		}
	}
	for _, it := range s.all() {
		if info := seen[it.spec.Name]; info != nil {
			it.update(info)
		} else if it.in(made) && s.gone(ctx, it) {
			it.lost()
		}
	}
}

func (s *Session) gone(ctx context.Context, it *Intercept) bool {
	ctx, cancel := context.WithTimeout(WithConsistency(ctx, Linearizable), confirmTimeout)
	defer cancel()
	info, err := s.api.GetIntercept(ctx, &manager.GetInterceptRequest{Session: s.info(), Name: it.spec.Name})
	if err == nil {
		it.update(info)
	}
	return errs.Code(err) == codes.NotFound
}

// restore makes the intercepts again that went with a lost session.
func (s *Session) restore(ctx context.Context, _ *Link) error {
	for _, it := range s.all() {
		if !it.in(forgotten) {
			continue
		}
		if err := it.remake(ctx); err != nil {
			return err
		}
	}
	return nil
}

// remake tries until it succeeds, the obstacle is one that time does not
// remove, or ctx ends. An error means that the session is lost again.
func (it *Intercept) remake(ctx context.Context) error {
	began := time.Now()
	session := it.s.ID()
	for warned := false; ; warned = true {
		if !it.in(forgotten) { // it was closed
			return nil
		}
		err := it.establish(ctx)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case errs.Reason(err) == ReasonConflict, errs.Reason(err) == ReasonRefused,
			errs.Code(err) == codes.PermissionDenied, errs.Code(err) == codes.InvalidArgument:
			it.fail(err)
			return nil
		case errs.Code(err) == codes.NotFound && !it.s.alive(ctx, session):
			return err
		case errs.Code(err) == codes.NotFound && time.Since(began) > restoreGrace:
			it.fail(err)
			return nil
		case !warned:
			e := errs.From(err)
			it.s.emit(Event{Kind: EventWarning, Intercept: it.spec.Name, Message: err.Error(), Hint: e.Hint, Err: err})
		}
		timer := time.NewTimer(restorePause)
		select {
		case <-timer.C:
		case <-it.done:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// alive tells whether the manager still knows the session; in doubt it does.
func (s *Session) alive(ctx context.Context, session string) bool {
	_, err := s.api.Remain(ctx, &manager.RemainRequest{Session: &manager.SessionInfo{SessionId: session}})
	return errs.Code(err) != codes.NotFound
}

// in tells whether the intercept is at that stage, and not over.
func (it *Intercept) in(st stage) bool {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	return it.stage == st && !it.over
}

// forget marks an intercept as unknown to the manager.
func (it *Intercept) forget() {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	if it.stage == made {
		it.stage = forgotten
	}
	it.info = nil
}

// meetAgain takes over what the manager has of the intercept in the session's
// earlier life; an intercept that it does not have is made again.
func (it *Intercept) meetAgain(ctx context.Context) error {
	it.forget()
	info, err := it.s.api.GetIntercept(WithConsistency(ctx, Linearizable), &manager.GetInterceptRequest{
		Session: it.s.info(), Name: it.spec.Name,
	})
	switch {
	case errs.Code(err) == codes.NotFound:
		return nil
	case err != nil:
		return err
	}
	it.s.mu.Lock()
	if it.stage == forgotten {
		it.stage = made
	}
	it.s.mu.Unlock()
	it.update(info)
	return nil
}

// update takes in a description of the intercept unless it is older than what
// is known, and tells what changed.
func (it *Intercept) update(info *manager.InterceptInfo) {
	it.s.mu.Lock()
	before := it.info
	if it.over || before != nil && info.GetModifiedAt().AsTime().Before(before.GetModifiedAt().AsTime()) {
		it.s.mu.Unlock()
		return
	}
	it.info = info
	now := info.GetDisposition()
	same := before != nil && before.GetDisposition() == now
	if now == manager.InterceptDispositionType_ACTIVE && !same {
		it.since = time.Now()
	}
	it.broadcast()
	it.s.mu.Unlock()
	if same {
		return
	}
	switch e := (Event{Intercept: it.spec.Name, Message: stateText(info)}); now {
	case manager.InterceptDispositionType_ACTIVE:
		e.Kind = EventActive
		it.s.emit(e)
	case manager.InterceptDispositionType_WAITING, manager.InterceptDispositionType_NO_CLIENT:
		e.Kind = EventWaiting
		it.s.emit(e)
	case manager.InterceptDispositionType_NO_AGENT, manager.InterceptDispositionType_NO_MECHANISM:
		e.Kind = EventNoAgent
		e.Hint = "it becomes active by itself once an agent of " + it.spec.Workload + " is there"
		it.s.emit(e)
	case manager.InterceptDispositionType_REMOVED:
		it.lost()
	default:
		it.fail(errs.New(codes.FailedPrecondition, ReasonRefused, "intercept %q: %s", it.spec.Name, stateText(info)).
			WithHint("trivet intercept list shows what stands in the way"))
	}
}

// stateText says in words where an intercept stands.
func stateText(info *manager.InterceptInfo) string {
	if m := info.GetMessage(); m != "" {
		return m
	}
	switch d := info.GetDisposition(); d {
	case manager.InterceptDispositionType_ACTIVE:
		return "traffic comes here"
	case manager.InterceptDispositionType_WAITING:
		return "waiting for an agent to approve it"
	case manager.InterceptDispositionType_NO_AGENT:
		return "no agent serves the workload"
	default:
		return "the manager says " + d.String()
	}
}

// lost ends an intercept that the manager does not have any more.
func (it *Intercept) lost() {
	it.s.mu.Lock()
	leaseOver := !it.until.IsZero() && time.Until(it.until) < time.Second
	it.s.mu.Unlock()
	err := errs.New(codes.NotFound, ReasonRemoved, "intercept %q was removed by somebody else", it.spec.Name).
		WithHint("an operator, or another client with --force, can do that")
	if leaseOver {
		err = errs.New(codes.DeadlineExceeded, ReasonLeaseOver, "the time of intercept %q is over", it.spec.Name)
	}
	it.s.drop(it)
	if it.finish(err) {
		it.s.emit(Event{Kind: EventRemoved, Intercept: it.spec.Name, Message: err.Message, Hint: err.Hint, Err: err})
	}
}

// fail ends an intercept that cannot go on. The manager has it until its owner
// closes it.
func (it *Intercept) fail(err error) {
	if it.finish(err) {
		e := errs.From(err)
		it.s.emit(Event{Kind: EventFailed, Intercept: it.spec.Name, Message: err.Error(), Hint: e.Hint, Err: err})
	}
}

// finish makes the intercept over; false if it was already.
func (it *Intercept) finish(err error) bool {
	it.s.mu.Lock()
	defer it.s.mu.Unlock()
	if it.over {
		return false
	}
	it.over, it.err = true, err
	close(it.done)
	it.broadcast()
	return true
}

// broadcast wakes those who wait for a change. s.mu must be held.
func (it *Intercept) broadcast() {
	close(it.changed)
	it.changed = make(chan struct{})
}
