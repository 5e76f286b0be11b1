package rt

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/google/go-cmp/cmp"
)

// The tests of this file are about protoactor-go alone: what this package
// relies on or works around. When an upgrade of the library breaks one, the
// comment at its top says which part of this package to look at.

func library(t *testing.T, f func(t *testing.T, as *actor.ActorSystem)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		as := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(slog.DiscardHandler)
		}))
		as.EventStream = zero(as.EventStream)
		f(t, as)
		as.Shutdown()
	})
}

// lifecycle writes down the lifecycle messages and strings an actor gets.
func lifecycle(log *journal[string], name string, ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		log.add(name + " started")
	case *actor.Restarting:
		log.add(name + " restarting")
	case *actor.Stopping:
		log.add(name + " stopping")
	case *actor.Stopped:
		log.add(name + " stopped")
	case string:
		log.add(name + " " + m)
		if m == "panic" {
			panic(m)
		}
	}
}

// Relied on by core.Receive and mailbox: the PID and queue survive, the failed
// message does not, and Started of the new incarnation comes after the
// children have stopped.
func TestLibraryRestart(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		var log journal[string]
		child := actor.PropsFromFunc(func(ctx actor.Context) { lifecycle(&log, "child", ctx) })
		made := 0
		pid := as.Root.Spawn(actor.PropsFromProducer(func() actor.Actor {
			made++
			first := made == 1
			return actor.ReceiveFunc(func(ctx actor.Context) {
				lifecycle(&log, "parent", ctx)
				if _, ok := ctx.Message().(*actor.Started); ok && first {
					ctx.Spawn(child)
				}
			})
		}))
		for _, m := range []string{"a", "panic", "b"} {
			as.Root.Send(pid, m)
		}
		synctest.Wait()
		as.Root.Stop(pid)
		synctest.Wait()
		want := []string{
			"parent started", "child started", "parent a", "parent panic", "parent restarting",
			"child stopping", "child stopped", "parent started", "parent b",
			"parent stopping", "parent stopped",
		}
		got := log.all()
		// The child starts while the parent goes on.
		for i := 2; i < len(got); i++ {
			if got[i] == "child started" {
				copy(got[2:i+1], got[1:i])
				got[1] = "child started"
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		wantEqual(t, "incarnations", made, 2)
	})
}

// Relied on by core.end: Stopped comes after the children have stopped.
func TestLibraryStop(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		var log journal[string]
		child := actor.PropsFromFunc(func(ctx actor.Context) { lifecycle(&log, "child", ctx) })
		pid := as.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			lifecycle(&log, "parent", ctx)
			if _, ok := ctx.Message().(*actor.Started); ok {
				ctx.Spawn(child)
			}
		}))
		synctest.Wait()
		as.Root.Stop(pid)
		synctest.Wait()
		want := []string{"parent stopping", "child stopping", "child stopped", "parent stopped"}
		if diff := cmp.Diff(want, log.all()[2:]); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// box is a mailbox that writes down what the library posts and hands it over
// only when told to.
type box struct {
	posted  []any
	invoker actor.MessageInvoker
}

func (b *box) PostUserMessage(m any)   { b.posted = append(b.posted, m) }
func (b *box) PostSystemMessage(m any) { b.posted = append(b.posted, m) }
func (b *box) Start()                  {}
func (b *box) UserMessageCount() int   { return 0 }
func (b *box) RegisterHandlers(i actor.MessageInvoker, _ actor.Dispatcher) {
	b.invoker = i
}

func (b *box) types() []any {
	var out []any
	for _, m := range b.posted {
		switch m.(type) {
		case *actor.Started:
			out = append(out, "Started")
		case *actor.Stop:
			out = append(out, "Stop")
		case *actor.Restart:
			out = append(out, "Restart")
		case *actor.SuspendMailbox:
			out = append(out, "Suspend")
		case *actor.ResumeMailbox:
			out = append(out, "Resume")
		case *actor.PoisonPill:
			out = append(out, "Poison")
		case *actor.Failure:
			out = append(out, "Failure")
		case *actor.Terminated:
			out = append(out, "Terminated")
		default:
			out = append(out, m)
		}
	}
	b.posted = nil
	return out
}

// Relied on by mailbox: which messages the library posts when, that the
// invoker is an actor.Context that knows its PID before any message, and that
// Failure carries our reason.
func TestLibraryPosts(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		parent, child := &box{}, &box{}
		var seen journal[string]
		props := func(b *box, name string) *actor.Props {
			return actor.PropsFromFunc(func(ctx actor.Context) { lifecycle(&seen, name, ctx) },
				actor.WithMailbox(func() actor.Mailbox { return b }))
		}
		as.Root.Spawn(props(parent, "parent"))
		pid, err := parent.invoker.(actor.SpawnerContext).SpawnNamed(props(child, "child"), "x")
		if err != nil {
			t.Fatal(err)
		}
		if self := child.invoker.(actor.Context).Self(); !self.Equal(pid) {
			t.Errorf("invoker knows %v, want %v", self, pid)
		}
		check := func(what string, b *box, want ...any) {
			t.Helper()
			if diff := cmp.Diff(want, b.types()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		check("spawn", child, "Started")
		check("spawn", parent, "Started")

		child.invoker.EscalateFailure(errBoom, nil)
		f := parent.posted[0].(*actor.Failure)
		if f.Reason != error(errBoom) || !f.Who.Equal(pid) {
			t.Errorf("failure carries %v of %v", f.Reason, f.Who)
		}
		check("failure", child, "Suspend")
		check("failure", parent, "Failure")

		parent.invoker.(actor.Supervisor).RestartChildren(pid)
		check("restart", child, "Restart")
		child.invoker.InvokeSystemMessage(&actor.Restart{})
		check("restarted", child, "Resume")

		as.Root.Poison(pid)
		check("poison", child, "Poison")
		child.invoker.InvokeUserMessage(&actor.PoisonPill{})
		check("poisoned", child, "Stop")
		child.invoker.InvokeSystemMessage(&actor.Stop{})
		check("stopped", parent, "Terminated")
		want := []string{"child restarting", "child started", "child stopping", "child stopped"}
		if diff := cmp.Diff(want, seen.all()); diff != "" {
			t.Errorf("lifecycle (-want +got):\n%s", diff)
		}
	})
}

// Worked around in mailbox.next: a Restart brings a stopped actor back.
func TestLibraryRestartRevivesTheStopped(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		b := &box{}
		var seen journal[string]
		as.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) { lifecycle(&seen, "a", ctx) },
			actor.WithMailbox(func() actor.Mailbox { return b })))
		b.invoker.InvokeSystemMessage(&actor.Stop{})
		b.invoker.InvokeSystemMessage(&actor.Restart{})
		want := []string{"a stopping", "a stopped", "a restarting", "a started"}
		if diff := cmp.Diff(want, seen.all()); diff != "" {
			t.Errorf("lifecycle (-want +got):\n%s", diff)
		}
	})
}

// Worked around in core.callStop: after a panic in Stopped, nobody is told
// that the actor has ended, and its parent waits forever.
func TestLibraryPanicInStoppedWedgesTheParent(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		var log journal[string]
		child := actor.PropsFromFunc(func(ctx actor.Context) {
			if _, ok := ctx.Message().(*actor.Stopped); ok {
				panic("in Stopped")
			}
		})
		pid := as.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
			lifecycle(&log, "parent", ctx)
			if _, ok := ctx.Message().(*actor.Started); ok {
				ctx.Spawn(child)
			}
		}))
		synctest.Wait()
		as.Root.Stop(pid)
		synctest.Wait()
		if diff := cmp.Diff([]string{"parent started", "parent stopping"}, log.all()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

// Worked around in NewSystem: a Stop to a child that has just ended by itself
// is a dead letter.
func TestLibraryStopOfTheGoneIsADeadLetter(t *testing.T) {
	library(t, func(t *testing.T, as *actor.ActorSystem) {
		letters := 0
		as.EventStream.Subscribe(func(event any) {
			if _, ok := event.(*actor.DeadLetterEvent); ok {
				letters++
			}
		})
		pid := as.Root.Spawn(actor.PropsFromFunc(func(actor.Context) {}))
		as.Root.Stop(pid)
		synctest.Wait()
		wantEqual(t, "dead letters of a stop", letters, 0)
		as.Root.Stop(pid)
		wantEqual(t, "dead letters of a second stop", letters, 1)
	})
}
