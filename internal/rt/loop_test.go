package rt

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/google/go-cmp/cmp"
)

// fakeActor is both what the mailbox belongs to and what it invokes.
type fakeActor struct {
	mb     *mailbox
	log    []string
	halted int
}

func (f *fakeActor) halt()             { f.halted++ }
func (f *fakeActor) lost(msg any)      { f.log = append(f.log, "lost "+msg.(string)) }
func (f *fakeActor) discard([]item)    {}
func (f *fakeActor) crashed(err error) { f.log = append(f.log, "crashed: "+err.Error()) }

func (f *fakeActor) EscalateFailure(any, any) {}

func (f *fakeActor) InvokeSystemMessage(m any) {
	switch m.(type) {
	case *actor.Stop:
		f.log = append(f.log, "stop")
	case *actor.Restart:
		f.log = append(f.log, "restart")
	case *actor.Started:
		f.log = append(f.log, "started")
	default:
		panic("no such system message")
	}
}

func (f *fakeActor) InvokeUserMessage(m any) {
	switch m.(type) {
	case deliverySignal:
		f.log = append(f.log, f.mb.current.msg.(string))
	case *actor.PoisonPill:
		f.log = append(f.log, "poison")
	}
}

// newFake makes a mailbox whose loop runs before each call returns.
func newFake(capacity int) (f *fakeActor, connect func()) {
	f = &fakeActor{}
	f.mb = &mailbox{owner: f, kind: &counters{epoch: time.Now()}, capacity: capacity}
	return f, func() {
		f.mb.RegisterHandlers(f, actor.NewSynchronizedDispatcher(2))
		f.mb.Start()
	}
}

func (f *fakeActor) want(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.log); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestMailboxKeepsWhatComesBeforeItsActor(t *testing.T) {
	f, connect := newFake(2)
	f.mb.PostSystemMessage(&actor.Started{})
	f.mb.PostUserMessage("a")
	f.mb.PostUserMessage("b")
	f.mb.PostUserMessage("c")
	wantEqual(t, "UserMessageCount", f.mb.UserMessageCount(), 2)
	f.want(t, "lost c")
	connect()
	f.want(t, "lost c", "started", "a", "b")
	wantEqual(t, "UserMessageCount", f.mb.UserMessageCount(), 0)
}

func TestMailboxSuspension(t *testing.T) {
	f, connect := newFake(4)
	connect()
	f.mb.PostSystemMessage(&actor.SuspendMailbox{})
	f.mb.PostUserMessage("a")
	f.mb.PostSystemMessage(&actor.Started{})
	f.want(t, "started") // system messages pass
	f.mb.PostSystemMessage(&actor.ResumeMailbox{})
	f.want(t, "started", "a")
}

func TestMailboxPoisonWaitsForTheQueue(t *testing.T) {
	f, connect := newFake(1)
	f.mb.PostUserMessage("a")
	f.mb.PostUserMessage(&actor.PoisonPill{}) // has a slot of its own
	f.mb.PostUserMessage("b")
	connect()
	f.want(t, "lost b", "a", "poison")
}

func TestMailboxStop(t *testing.T) {
	f, connect := newFake(4)
	for _, m := range []string{"a", "b"} {
		f.mb.PostUserMessage(m)
	}
	f.mb.PostSystemMessage(&actor.Stop{})
	wantEqual(t, "halted", f.halted, 1)
	f.mb.PostUserMessage(&actor.PoisonPill{})
	f.mb.PostSystemMessage(&actor.Restart{}) // must not revive it
	connect()
	f.want(t, "lost a", "lost b", "stop")
}

func TestMailboxHoldsForWorkers(t *testing.T) {
	f, connect := newFake(4)
	connect()
	f.mb.workers = 2
	f.mb.PostSystemMessage(&actor.Restart{})
	f.mb.workerDone()
	f.want(t)
	f.mb.workerDone()
	f.want(t, "restart")

	f.mb.workers = 1
	f.mb.PostSystemMessage(&actor.Restart{})
	f.mb.PostSystemMessage(&actor.Stop{}) // takes the place of the restart
	f.mb.workerDone()
	f.want(t, "restart", "stop")
}

func TestMailboxSurvivesAPanicOfTheLibrary(t *testing.T) {
	f, connect := newFake(4)
	f.mb.PostSystemMessage("unknown")
	f.mb.PostUserMessage("a")
	connect()
	f.want(t, "crashed: panic: no such system message", "a")
}

// The same in a real actor is a failure of it; of a group, a record in the log.
func TestPanicOfTheLibrary(t *testing.T) {
	var out logBuffer
	bubble(t, Options{Logger: out.logger(slog.LevelInfo)}, func(t *testing.T, s *System) {
		g := mustGroup(t, s, "g", GroupPolicy{})
		ref := mustSpawn(t, g, script[int]{}.spec("a"))
		synctest.Wait()
		for _, c := range []*core{g.core, ref.cell.core} {
			c.mb.PostSystemMessage((*actor.Watch)(nil))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		wantEqual(t, "Restarts", s.Stats().Kinds["a"].Restarts, 1)
		wantEqual(t, "actor", ref.Err(), nil)
		mustSpawn(t, g, script[int]{}.spec("b"))
	})
	if !strings.Contains(out.String(), "supervisor failed") {
		t.Errorf("nothing about the group in the log:\n%s", out.String())
	}
}
