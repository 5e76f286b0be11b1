package client

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/client/clienttest"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
)

func TestSessionResumesOnAnotherServer(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 3)
	s := openSession(t, dialFake(t, f, fast()))
	id := s.ID()
	if e := await(t, s, EventConnected); e.Server != "s1" {
		t.Errorf("connected to %q, want s1", e.Server)
	}
	it := intercept(t, s)
	await(t, s, EventActive)
	for _, step := range []struct{ kill, next string }{{"s1", "s2"}, {"s2", "s3"}} {
		f.Server(step.kill).Kill()
		if e := await(t, s, EventReconnecting); e.Server != step.kill || e.Message == "" || e.Err == nil {
			t.Errorf("reconnecting event = %+v, want one about %s with a cause", e, step.kill)
		}
		if e := await(t, s, EventConnected); e.Server != step.next {
			t.Errorf("connected to %q, want %s", e.Server, step.next)
		}
	}
	if s.ID() != id {
		t.Errorf("session id changed from %s to %s", id, s.ID())
	}
	if n := len(f.Calls("ReconnectClient")); n < 2 {
		t.Errorf("ReconnectClient was called %d times, want one per reconnect", n)
	}
	if n := len(f.Calls("ArriveAsClient")) + len(f.Calls("CreateIntercept")); n != 2 {
		t.Errorf("%d arrivals and creations, want 2: nothing was lost", n)
	}
	if err := it.WaitActive(t.Context()); err != nil {
		t.Errorf("intercept: %v", err)
	}
}

func TestSessionLeavesAHungServer(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	f.Server("s1").Hang()
	if e := await(t, s, EventReconnecting); errs.Reason(e.Err) != ReasonNoAnswer {
		t.Errorf("cause = %v (%s), want %s", e.Err, errs.Reason(e.Err), ReasonNoAnswer)
	}
	if e := await(t, s, EventConnected); e.Server != "s2" {
		t.Errorf("connected to %q, want s2", e.Server)
	}
}

func TestSessionResumesWhenOnlyItsStreamEnds(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	id := s.ID()
	// The session vanishes for a moment: the watch ends, the link does not.
	var info *manager.ClientInfo
	f.Change(func() { info = f.Sessions[id] })
	f.Change(func() { delete(f.Sessions, id) })
	e := await(t, s, EventReconnecting)
	if errs.Reason(e.Err) != ReasonStreamEnded {
		t.Errorf("cause = %v, want %s", e.Err, ReasonStreamEnded)
	}
	f.Change(func() { f.Sessions[id] = info })
	await(t, s, EventConnected)
}

func TestForgottenSessionArrivesAnewWithItsIntercepts(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	it := intercept(t, s)
	await(t, s, EventActive)
	old := s.ID()
	f.Forget()
	await(t, s, EventRenewed)
	await(t, s, EventActive)
	if s.ID() == old {
		t.Error("the session kept its id although the manager had forgotten it")
	}
	if want := s.ID() + ":api"; it.ID() != want {
		t.Errorf("intercept id = %s, want %s", it.ID(), want)
	}
	select {
	case <-it.Done():
		t.Errorf("the intercept is over: %v", it.Err())
	default:
	}
}

// TestSessionOfARestoredSnapshotGoesOn: a client that met servers without their
// state, which then get it from a snapshot, goes on with the session and the
// intercept that are in it.
func TestSessionOfARestoredSnapshotGoesOn(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	it := intercept(t, s)
	await(t, s, EventActive)
	old, oldIntercept := s.ID(), it.ID()
	var restore func()
	f.Change(func() {
		sessions, intercepts := f.Sessions, f.Intercepts
		restore = func() { f.Sessions, f.Intercepts = sessions, intercepts }
	})
	f.Forget()
	await(t, s, EventRenewed)
	await(t, s, EventActive)
	if s.ID() == old {
		t.Fatal("the manager had not forgotten the session")
	}
	made := len(f.Calls("CreateIntercept"))
	f.Change(restore)
	await(t, s, EventRenewed)
	await(t, s, EventActive)
	if s.ID() != old || it.ID() != oldIntercept {
		t.Errorf("session %s with intercept %s, want %s and %s", s.ID(), it.ID(), old, oldIntercept)
	}
	if n := len(f.Calls("CreateIntercept")) - made; n != 0 {
		t.Errorf("the intercept was made %d times although the manager has it", n)
	}
	select {
	case <-it.Done():
		t.Errorf("the intercept is over: %v", it.Err())
	default:
	}
}

func TestInterceptThatCannotBeMadeAgainFails(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	it := intercept(t, s)
	await(t, s, EventActive)
	f.Answer("CreateIntercept", errs.New(codes.FailedPrecondition, ReasonConflict, "bob has it now"))
	f.Forget()
	if e := await(t, s, EventFailed); errs.Reason(e.Err) != ReasonConflict {
		t.Errorf("failed with %v, want %s", e.Err, ReasonConflict)
	}
	receive(t, "the end of the intercept", it.Done())
	if errs.Reason(it.Err()) != ReasonConflict {
		t.Errorf("Err() = %v", it.Err())
	}
}

func TestObstaclesThatPassAreWaitedFor(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	intercept(t, s)
	await(t, s, EventActive)
	// Its nodes have not reported the workload again yet.
	f.Answer("EnsureAgent", errs.New(codes.NotFound, "WORKLOAD_NOT_FOUND", "workload not found"))
	f.Forget()
	await(t, s, EventWarning)
	await(t, s, EventActive)
}

func TestOutageIsToldAndEnds(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 2)
	s := openSession(t, dialFake(t, f, fast()))
	await(t, s, EventConnected)
	for _, srv := range f.Servers {
		srv.Kill()
	}
	await(t, s, EventReconnecting)
	if e := await(t, s, EventReconnecting); errs.Reason(e.Err) != ReasonNoServer {
		t.Errorf("cause = %v, want %s", e.Err, ReasonNoServer)
	}
	f.Servers[1].Start()
	if e := await(t, s, EventConnected); e.Server != "s2" {
		t.Errorf("connected to %q, want s2", e.Server)
	}
}

func TestSessionShowsSignsOfLife(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()), func(o *SessionOptions) { o.RemainEvery = 10 * time.Millisecond })
	await(t, s, EventConnected)
	f.Answer("Remain", nil, errs.New(codes.Internal, "X", "an error that is not about the session"), nil)
	// The third answer says that the session is gone.
	f.Answer("Remain", errs.New(codes.NotFound, "SESSION_NOT_FOUND", "gone"))
	if e := await(t, s, EventReconnecting); errs.Code(e.Err) != codes.NotFound {
		t.Errorf("cause = %v, want NotFound", e.Err)
	}
	// ReconnectClient finds it after all.
	await(t, s, EventConnected)
	if n := len(f.Calls("ArriveAsClient")); n != 1 {
		t.Errorf("arrived %d times, want once", n)
	}
}

func TestCloseCleansUpAtTheManager(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	intercept(t, s)
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var sessions, intercepts int
	f.Change(func() { sessions, intercepts = len(f.Sessions), len(f.Intercepts) })
	if sessions+intercepts != 0 || len(f.Calls("RemoveIntercept")) != 1 || len(f.Calls("Depart")) != 1 {
		t.Errorf("%d sessions and %d intercepts are left", sessions, intercepts)
	}
	for {
		if _, err := s.Next(t.Context()); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Errorf("after Close: %v, want io.EOF", err)
			}
			break
		}
	}
	if _, err := s.Intercept(t.Context(), spec()); errs.Reason(err) != ReasonSessionClosed {
		t.Errorf("Intercept after Close: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCloseDoesNotHangWithoutServers(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	intercept(t, s)
	f.Server("s1").Kill()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err == nil {
		t.Error("Close says that all is well although no server heard of it")
	}
}

func TestArrivalIsRefusedWithTheManagersWords(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	f.Answer("ArriveAsClient", errs.New(codes.InvalidArgument, "MISSING_FIELD", "name must not be empty"))
	_, err := OpenSession(t.Context(), dialFake(t, f, fast()), SessionOptions{})
	if err == nil || err.Error() != "open a session: name must not be empty" || errs.Code(err) != codes.InvalidArgument {
		t.Errorf("error = %v", err)
	}
}

func TestStateOfTheInterceptIsTold(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	f.Disposition = manager.InterceptDispositionType_WAITING
	s := openSession(t, dialFake(t, f, fast()))
	it := intercept(t, s)
	await(t, s, EventWaiting)
	for _, step := range []struct {
		disposition manager.InterceptDispositionType
		kind        EventKind
	}{
		{manager.InterceptDispositionType_ACTIVE, EventActive},
		{manager.InterceptDispositionType_NO_AGENT, EventNoAgent},
		{manager.InterceptDispositionType_WAITING, EventWaiting},
		{manager.InterceptDispositionType_ACTIVE, EventActive},
		{manager.InterceptDispositionType_AGENT_ERROR, EventFailed},
	} {
		f.Dispose(step.disposition, "because")
		if e := await(t, s, step.kind); e.Intercept != "api" || e.Message == "" {
			t.Errorf("event = %+v", e)
		}
	}
	if err := it.WaitActive(t.Context()); errs.Code(err) != codes.FailedPrecondition {
		t.Errorf("WaitActive after the failure: %v", err)
	}
}

func TestInterceptRemovedBySomebodyElseIsOver(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	it := intercept(t, s)
	await(t, s, EventActive)
	f.Change(func() { delete(f.Intercepts, it.ID()) })
	await(t, s, EventRemoved)
	receive(t, "the end of the intercept", it.Done())
	if errs.Reason(it.Err()) != ReasonRemoved {
		t.Errorf("Err() = %v", it.Err())
	}
}

func TestSnapshotThatLagsBehindRemovesNothing(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	it := intercept(t, s)
	s.observe(t.Context(), nil) // the manager, asked, still has it
	select {
	case <-it.Done():
		t.Errorf("the intercept is over: %v", it.Err())
	default:
	}
	calls := f.Calls("GetIntercept")
	if len(calls) == 0 || calls[0].MD.Get(ConsistencyKey)[0] != string(Linearizable) {
		t.Error("the manager was not asked for its latest state")
	}
}

func TestLeaseThatEndsIsNotAnAccident(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	s := openSession(t, dialFake(t, f, fast()))
	sp := spec()
	sp.Lease = 500 * time.Millisecond
	it, err := s.Intercept(t.Context(), sp)
	if err != nil {
		t.Fatal(err)
	}
	f.Change(func() { delete(f.Intercepts, it.ID()) })
	receive(t, "the end of the intercept", it.Done())
	if errs.Reason(it.Err()) != ReasonLeaseOver {
		t.Errorf("Err() = %v, want %s", it.Err(), ReasonLeaseOver)
	}
}

func TestAnnouncedVersionIsTheContractsAndSemantic(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"0.1.0":            "2.31.0+trivet.0.1.0",
		"v0.1.0-dev+dirty": "2.31.0+trivet.v0.1.0-dev.dirty",
		"(devel)":          "2.31.0+trivet.devel",
		"":                 "2.31.0+trivet",
	} {
		if got := announced(version); got != want {
			t.Errorf("announced(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestBadSpecsAreRefusedHere(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*InterceptSpec){
		"no name":       func(s *InterceptSpec) { s.Name = "" },
		"bad name":      func(s *InterceptSpec) { s.Name = "a:b" },
		"no workload":   func(s *InterceptSpec) { s.Workload = "" },
		"no port":       func(s *InterceptSpec) { s.LocalPort = 0 },
		"port too high": func(s *InterceptSpec) { s.LocalPort = 70000 },
		"host name":     func(s *InterceptSpec) { s.LocalHost = "example.org" },
		"negative time": func(s *InterceptSpec) { s.Lease = -1 },
	} {
		s := spec()
		change(&s)
		if err := s.Validate(); errs.Reason(err) != ReasonBadSpec || errs.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := spec().Validate(); err != nil {
		t.Error(err)
	}
}

func TestRefusalHasTheReasonOfTheCreation(t *testing.T) {
	t.Parallel()
	f := clienttest.New(t, 1)
	f.Prepared = &manager.PreparedIntercept{Error: "port 80 is taken by bob", ErrorCategory: 1}
	conflict := errs.New(codes.FailedPrecondition, ReasonConflict, "port 80 is taken by bob").WithHint("use --force")
	s := openSession(t, dialFake(t, f, fast()))
	f.Answer("CreateIntercept", conflict)
	_, err := s.Intercept(t.Context(), spec())
	if e := errs.From(err); e.Reason != ReasonConflict || e.Hint != "use --force" ||
		err.Error() != `create intercept "api": port 80 is taken by bob` {
		t.Errorf("error = %v (%s)", err, errs.Reason(err))
	}
	// The name is free again, and force goes another way.
	sp := spec()
	sp.Force = true
	if _, err := s.Intercept(t.Context(), sp); err != nil {
		t.Errorf("forced: %v", err)
	}
	if calls := f.Calls("CreateIntercept"); len(calls) != 2 || !strings.HasPrefix(calls[1].FullMethod, operatorService) {
		t.Errorf("calls = %+v, want the second one at the operator service", calls)
	}
	if _, err := s.Intercept(t.Context(), sp); errs.Reason(err) != ReasonNameTaken {
		t.Errorf("same name again: %v", err)
	}
}

func TestEventsAboutTrafficGiveWayToState(t *testing.T) {
	t.Parallel()
	q := newEventQueue()
	q.put(Event{Kind: EventActive})
	for range maxEvents + 9 {
		q.put(Event{Kind: EventConnection})
	}
	q.put(Event{Kind: EventReconnecting})
	q.close()
	var kinds []EventKind
	var missed uint64
	for {
		e, err := q.next(t.Context())
		if err != nil {
			break
		}
		kinds, missed = append(kinds, e.Kind), missed+e.Missed
	}
	if len(kinds) != maxEvents || kinds[0] != EventActive || kinds[maxEvents-1] != EventReconnecting {
		t.Errorf("%d events, first %s, last %s", len(kinds), kinds[0], kinds[len(kinds)-1])
	}
	if missed != 11 || q.droppedTotal() != 11 {
		t.Errorf("missed = %d, dropped = %d, want 11", missed, q.droppedTotal())
	}
}

func spec() InterceptSpec {
	return InterceptSpec{Name: "api", Workload: "web", LocalPort: 8080}
}

func intercept(t *testing.T, s *Session) *Intercept {
	t.Helper()
	it, err := s.Intercept(t.Context(), spec())
	if err != nil {
		t.Fatal(err)
	}
	return it
}
