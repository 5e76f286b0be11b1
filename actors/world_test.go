package actors

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"trivet/fsm"
	"trivet/internal/rt"
	manager "trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fault is what happens to one proposal.
type fault int

const (
	none       fault = iota
	lost             // an error, and it was not applied
	lateAnswer       // an error, although it was applied
	hang             // nothing, until the caller gives up
)

var errUnknownOutcome = errors.New("leadership lost while the command was on its way")

// reporter is the part of testing.TB that a world needs.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// world is a replicated state of one replica, which is also the replicator of
// its leader. It fails the test when the actors break their rules.
type world struct {
	t reporter
	m *fsm.Machine

	mu    sync.Mutex
	term  uint64
	index uint64
	// proposed is every command that actors sent, applied or not.
	proposed []*commandv1.Command
	inFlight map[string]bool
	// onPropose and onConfirm decide about the next call; nil: all is well.
	onPropose func(*commandv1.Command) fault
	onConfirm func() error
	// onRoot sees who reads the state.
	onRoot func(caller string)
}

func newWorld(t reporter, o fsm.Options) *world {
	return &world{t: t, m: fsm.New(o), term: 1, inFlight: make(map[string]bool)}
}

// apply is what peers and operators do to the state.
func (w *world) apply(cmds ...*commandv1.Command) []*commandv1.Result {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.applyLocked(cmds)
}

func (w *world) applyLocked(cmds []*commandv1.Command) []*commandv1.Result {
	w.t.Helper()
	w.index++
	for _, c := range cmds {
		c.Version = fsm.CommandVersion
		c.Time = time.Now().UnixNano()
	}
	results, err := w.m.Apply(fsm.Position{Index: w.index, Term: w.term}, &commandv1.Entry{Commands: cmds})
	if err != nil {
		w.t.Errorf("apply: %v", err)
	}
	return results
}

// must applies a command that has to succeed.
func (w *world) must(cmd *commandv1.Command) *commandv1.Result {
	w.t.Helper()
	r := w.apply(cmd)[0]
	if r.Code != commandv1.Code_CODE_OK {
		w.t.Fatalf("%T refused: %s %s", cmd.Op, r.Reason, r.Message)
	}
	return r
}

// keys are the rows that a command is about.
func keys(c *commandv1.Command) []string {
	var ids []string
	if s := c.GetSetIntercept(); s != nil {
		ids = append(ids, s.Id)
	}
	for _, item := range c.GetExpireSessions().GetItems() {
		ids = append(ids, item.SessionId)
	}
	return ids
}

// checkRules fails the test when a command lacks a fence.
func (w *world) checkRules(c *commandv1.Command) {
	if c.ExpectedTerm == 0 {
		w.t.Errorf("%T without a term", c.Op)
	}
	switch s := c.GetSetIntercept(); {
	case s != nil && s.SeenModifyRevision == 0:
		w.t.Errorf("intercept %s decided without a revision", s.Id)
	case s == nil && c.GetExpireSessions() == nil:
		w.t.Errorf("unexpected command %T", c.Op)
	}
	items := c.GetExpireSessions().GetItems()
	if len(items) > maxExpiries {
		w.t.Errorf("%d sessions in one command", len(items))
	}
	for _, item := range items {
		if item.SeenModifyRevision == 0 {
			w.t.Errorf("session %s expired without a revision", item.SessionId)
		}
	}
}

func (w *world) Propose(ctx context.Context, cmds ...*commandv1.Command) ([]*commandv1.Result, error) {
	w.mu.Lock()
	f := none
	for _, c := range cmds {
		w.checkRules(c)
		w.proposed = append(w.proposed, c)
		if w.onPropose != nil {
			f = max(f, w.onPropose(c))
		}
		for _, id := range keys(c) {
			if w.inFlight[id] {
				w.t.Errorf("two commands about %s on their way", id)
			}
			w.inFlight[id] = true
		}
	}
	defer func() {
		defer w.mu.Unlock()
		for _, c := range cmds {
			for _, id := range keys(c) {
				delete(w.inFlight, id)
			}
		}
	}()
	switch f {
	case lost:
		return nil, errUnknownOutcome
	case hang:
		w.mu.Unlock()
		<-ctx.Done()
		w.mu.Lock()
		return nil, ctx.Err()
	case lateAnswer:
		w.applyLocked(cmds)
		return nil, errUnknownOutcome
	default:
		return w.applyLocked(cmds), nil
	}
}

func (w *world) Root() *fsm.Root {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.onRoot != nil {
		pc, _, _, _ := runtime.Caller(1)
		w.onRoot(runtime.FuncForPC(pc).Name())
	}
	return w.m.Root()
}

func (w *world) Watch(after uint64) *fsm.Cursor { return w.m.Watch(after) }

func (w *world) ConfirmLeader(ctx context.Context) error {
	w.mu.Lock()
	f := w.onConfirm
	w.mu.Unlock()
	if f == nil {
		return ctx.Err()
	}
	return f()
}

// set changes the hooks while actors run.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// sent counts the commands of actors for which f holds.
func (w *world) sent(f func(*commandv1.Command) bool) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.proposed {
		if f(c) {
			n++
		}
	}
	return n
}

func isSet(c *commandv1.Command) bool    { return c.GetSetIntercept() != nil }
func isExpire(c *commandv1.Command) bool { return c.GetExpireSessions() != nil }

// agent lets an agent of workload default/web arrive; gen OLDER shows itself
// at once.
func (w *world) agent(pod string, gen commandv1.Generation) string {
	w.t.Helper()
	id := w.must(arriveAgent(pod, 8022)).GetSession().GetId()
	if gen == older {
		w.must(&commandv1.Command{Op: &commandv1.Command_SetGeneration{
			SetGeneration: &commandv1.SetGeneration{SessionId: id, Generation: older},
		}})
	}
	return id
}

func arriveAgent(pod string, port int32) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{
		Info: &manager.AgentInfo{
			Name: "web", Namespace: "default", Product: "traffic-agent", Version: "2.30.0",
			PodName: pod, PodUid: pod, PodIp: "10.0.0.1", ApiPort: port,
			Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "traffic-agent", Version: "2.30.0"}},
		},
	}}}
}

// client lets a client arrive.
func (w *world) client(id string) string {
	w.t.Helper()
	w.must(arriveClient(id))
	return id
}

func arriveClient(id string) *commandv1.Command {
	return &commandv1.Command{StampedId: id, Op: &commandv1.Command_ArriveClient{
		ArriveClient: &commandv1.ArriveClient{Info: &manager.ClientInfo{
			Name: "ann@laptop", InstallId: "i", Product: "telepresence", Version: "2.30.0",
		}},
	}}
}

// intercept makes an intercept of default/web; every name filters on a header
// of its own, so that they do not conflict.
func (w *world) intercept(client, name string, lease time.Duration) string {
	w.t.Helper()
	return w.must(createIntercept(client, name, lease)).GetIntercept().GetId()
}

func createIntercept(client, name string, lease time.Duration) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_CreateIntercept{
		CreateIntercept: &commandv1.CreateIntercept{
			SessionId: client, Lease: int64(lease),
			Spec: &manager.InterceptSpec{
				Name: name, Client: "ann@laptop", Agent: "web", Namespace: "default",
				Mechanism: "tcp", TargetHost: "127.0.0.1", TargetPort: 8080,
				HeaderFilters: map[string]string{"x-who": client + "-" + name},
			},
		},
	}}
}

// review lets an agent approve an intercept.
func (w *world) review(agent, id string) {
	w.t.Helper()
	w.must(&commandv1.Command{Op: &commandv1.Command_ReviewIntercept{
		ReviewIntercept: &commandv1.ReviewIntercept{Review: &manager.ReviewInterceptRequest{
			Session: &manager.SessionInfo{SessionId: agent}, Id: id, Disposition: dispActive, PodIp: "10.0.0.1",
		}},
	}})
}

func (w *world) depart(session string) {
	w.t.Helper()
	w.must(&commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: session}}})
}

func (w *world) hasSession(id string) bool {
	_, ok := w.m.Root().Session(id)
	return ok
}

// wantSession fails unless the session is there or not, as wanted.
func (w *world) wantSession(id string, want bool, when string) {
	w.t.Helper()
	if got := w.hasSession(id); got != want {
		w.t.Fatalf("%s: session %s present = %v, want %v", when, id, got, want)
	}
}

// wantIntercept fails unless the row is in these states.
func (w *world) wantIntercept(id string, d manager.InterceptDispositionType, o commandv1.OwnerState, when string) {
	w.t.Helper()
	row, ok := w.m.Root().Intercept(id)
	if !ok {
		w.t.Fatalf("%s: intercept %s is gone", when, id)
	}
	if row.Disposition != d || row.OwnerState != o {
		w.t.Fatalf("%s: intercept %s is %v, owner %v; want %v, %v", when, id, row.Disposition, row.OwnerState, d, o)
	}
}

// stage is a world with a leader in a synctest bubble.
type stage struct {
	*world
	sys    *rt.System
	leader *Leader
	limits Limits
	// escalated gets what the leader escalated.
	escalated chan error
}

// onStage runs f in a bubble and stops everything after it. f starts the
// leader itself, so that there may be rows before.
func onStage(t *testing.T, f func(t *testing.T, s *stage)) {
	t.Helper()
	onStageWith(t, fsm.Options{}, f)
}

func onStageWith(t *testing.T, o fsm.Options, f func(t *testing.T, s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, o)
		t.Cleanup(s.close)
		f(t, s)
	})
}

// newStage makes a stage; it must be closed in the bubble it was made in.
func newStage(t reporter, o fsm.Options) *stage {
	return &stage{
		world: newWorld(t, o), sys: rt.NewSystem(rt.Options{}), limits: DefaultLimits(),
		escalated: make(chan error, 4),
	}
}

// close stops everything.
func (s *stage) close() {
	s.stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.sys.Shutdown(ctx); err != nil {
		s.t.Errorf("%v", err)
	}
}

// start makes the world's server leader of its term.
func (s *stage) start() {
	s.t.Helper()
	l, err := StartLeader(context.Background(), s.sys, Config{
		Term: s.term, Replicator: s.world, Limits: s.limits,
		OnEscalate: func(err error) { s.escalated <- err },
	})
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	s.leader = l
	synctest.Wait()
}

// stop ends the leader's time in office.
func (s *stage) stop() {
	s.t.Helper()
	if s.leader == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.leader.Stop(ctx); err != nil {
		s.t.Errorf("%v", err)
	}
	s.leader = nil
}

// failover is the death of the leader and the start of the next one.
func (s *stage) failover() {
	s.t.Helper()
	s.stop()
	s.set(func() { s.term++ })
	s.start()
}

// pass lets virtual time go by until nothing moves any more.
func (s *stage) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// attach reports the streams of a session at a server.
func (s *stage) attach(server, session string, dial, watch int) {
	s.leader.SetAttachments(server, server+"-boot", false, []Attachment{{
		SessionID: session, DialStreams: dial, WatchStreams: watch,
	}})
	synctest.Wait()
}

// endedByPeer reports that the peer ended its last stream at a server.
func (s *stage) endedByPeer(server, session string) {
	s.leader.SetAttachments(server, server+"-boot", false, []Attachment{{SessionID: session, EndedByPeer: true}})
	synctest.Wait()
}

func sessionName(i int) string { return fmt.Sprintf("s-%06d", i) }
