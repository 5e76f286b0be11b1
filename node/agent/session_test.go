package agent

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/testing/protocmp"

	"trivet/node/internal/managertest"
	"trivet/node/steal"
	"trivet/node/workload"
	"trivet/proto/telepresence/manager"
)

const session = "agent:uid-0"

// arrivedAt waits until the agent has its session and both streams.
func (r *rig) arrivedAt() {
	r.t.Helper()
	r.manager.Await("the agent's streams", func(s managertest.State) bool {
		return s.Watches[session] == 1 && s.Dials[session] == 1
	})
}

// activate makes an intercept and waits until the agent serves it.
func (r *rig) activate(change ...func(*manager.InterceptInfo)) {
	r.t.Helper()
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo", change...))
	r.awaitActive("client-1:one")
}

func (r *rig) awaitActive(id string) {
	r.t.Helper()
	r.manager.Await("an active intercept", func(s managertest.State) bool {
		return s.Intercepts[id].GetDisposition() == active
	})
}

func TestAgentArrivesAsThePublishedContractSays(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.arrivedAt()
	want := &manager.AgentInfo{
		Name: "echo", Namespace: "default", Kind: "Deployment", PodName: "echo-0", PodIp: "10.1.2.3", PodUid: "uid-0",
		Product: "trivet", Version: "1.0.0",
		Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "trivet", Version: "1.0.0"}},
		Containers: map[string]*manager.AgentInfo_ContainerInfo{
			"app":     {Environment: map[string]string{"TELEPRESENCE_CONTAINER": "app"}},
			"sidecar": {Environment: map[string]string{"TELEPRESENCE_CONTAINER": "sidecar"}},
		},
	}
	if d := cmp.Diff(want, r.manager.State().Agents[session], protocmp.Transform()); d != "" {
		t.Errorf("agent info (-want +got):\n%s", d)
	}
}

func TestWaitingInterceptIsArmedThenApproved(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	greeted(t, r.visit(), "app")
	r.activate()
	reviews := r.manager.State().Reviews
	want := []*manager.ReviewInterceptRequest{{
		Session: &manager.SessionInfo{SessionId: session}, Id: "client-1:one", Disposition: active,
		Message: "served on node node-a by proxy", PodIp: "10.1.2.3", MechanismArgsDesc: "all TCP connections",
		Environment: map[string]string{"TELEPRESENCE_CONTAINER": "app"},
	}}
	if d := cmp.Diff(want, reviews, protocmp.Transform()); d != "" {
		t.Errorf("reviews (-want +got):\n%s", d)
	}
	greeted(t, r.visit(), "laptop")

	r.manager.SetIntercepts()
	eventually(t, "the app's answer after the intercept is gone", func() bool {
		c := r.visit()
		defer c.Close()
		buf := make([]byte, 3)
		_, err := c.Read(buf)
		return err == nil && string(buf) == "app"
	})
}

func TestConflictsAreRefusedByName(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.arrivedAt()
	r.activate()
	r.manager.SetIntercepts(
		managertest.Intercept("client-1", "one", "echo", func(i *manager.InterceptInfo) { i.Disposition = active }),
		managertest.Intercept("client-0", "two", "echo"),
		managertest.Intercept("client-2", "three", "echo", func(i *manager.InterceptInfo) { i.Spec.ContainerName = "x" }),
	)
	r.manager.Await("the refusals", func(s managertest.State) bool {
		return s.Intercepts["client-0:two"].GetDisposition() == manager.InterceptDispositionType_AGENT_ERROR &&
			s.Intercepts["client-2:three"].GetDisposition() == manager.InterceptDispositionType_AGENT_ERROR
	})
	st := r.manager.State()
	if got, want := st.Intercepts["client-0:two"].GetMessage(), `Conflicts with the currently-served intercept "client-1:one"`; got != want {
		t.Errorf("message is %q, want %q", got, want)
	}
	if got, want := st.Intercepts["client-2:three"].GetMessage(), `No match for container "x"`; got != want {
		t.Errorf("message is %q, want %q", got, want)
	}
}

func TestArmingFailureIsTheOwnersToRead(t *testing.T) {
	t.Parallel()
	var fixed atomic.Bool
	r := newRig(t, rigOptions{wrap: func(attach attachFunc) attachFunc {
		return func(ctx context.Context, p *workload.Pod) (steal.Backend, error) {
			if !fixed.Load() {
				return nil, errors.New("the namespace is gone")
			}
			return attach(ctx, p)
		}
	}})
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo"))
	r.manager.Await("the refusal", func(s managertest.State) bool {
		return s.Intercepts["client-1:one"].GetDisposition() == manager.InterceptDispositionType_AGENT_ERROR
	})
	if got, want := r.manager.State().Intercepts["client-1:one"].GetMessage(), "cannot intercept port 8080: the namespace is gone"; got != want {
		t.Errorf("message is %q, want %q", got, want)
	}
	// The agent goes on trying; the next intercept finds it attached.
	fixed.Store(true)
	eventually(t, "an intercept that is served", func() bool {
		r.manager.SetIntercepts(managertest.Intercept("client-2", "two", "echo"))
		var d manager.InterceptDispositionType
		r.manager.Await("a verdict", func(s managertest.State) bool {
			d = s.Intercepts["client-2:two"].GetDisposition()
			return d != waiting
		})
		return d == active
	})
}

func TestUnfrontedPortIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo", func(i *manager.InterceptInfo) {
		i.Spec.ContainerPort = 9090
	}))
	r.manager.Await("the refusal", func(s managertest.State) bool {
		return s.Intercepts["client-1:one"].GetDisposition() == manager.InterceptDispositionType_AGENT_ERROR
	})
}

func TestSessionIsResumedAtAnotherServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{servers: 3})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.arrivedAt()
	r.activate()
	for _, s := range r.servers {
		s.Kill()
		// The intercept is served by whichever server is left.
		c := r.visit()
		greeted(t, c, "laptop")
		echoes(t, c, "after a failover")
		s.Restart()
		r.manager.Await("one watch again", func(st managertest.State) bool { return st.Watches[session] == 1 })
	}
	log := r.manager.State().Log
	if got := slices.DeleteFunc(slices.Clone(log), func(l string) bool { return l != "arrive "+session }); len(got) != 1 {
		t.Errorf("the agent arrived anew: %v", log)
	}
	if !slices.Contains(log, "reconnect "+session) {
		t.Errorf("the agent did not resume its session: %v", log)
	}
	if n := len(r.manager.State().Reviews); n != 1 {
		t.Errorf("an active intercept was reviewed %d times", n)
	}
}

func TestHungServerIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{servers: 2})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.arrivedAt()
	r.activate()
	r.servers[0].Hang()
	greeted(t, r.visit(), "laptop")
	r.manager.Await("the session at the other server", func(s managertest.State) bool {
		return slices.Contains(s.Log, "reconnect "+session)
	})
}

func TestEndedSessionArrivesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.arrivedAt()
	r.manager.DropSession(session)
	r.manager.Await("a second arrival", func(s managertest.State) bool {
		n := 0
		for _, l := range s.Log {
			if l == "arrive "+session {
				n++
			}
		}
		return n == 2 && s.Watches[session] == 1
	})
}

func TestInterceptHoldsWithoutAManager(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.manager.OnTunnel(managertest.Owner(serve(t, "laptop")))
	r.arrivedAt()
	r.activate()
	r.servers[0].Kill()
	// Stolen and held while there is no server; served when there is.
	c := r.visit()
	eventually(t, "a held connection", func() bool { return value(t, r.metrics.held) == 1 })
	r.servers[0].Restart()
	greeted(t, c, "laptop")
}

func TestRetiredAgentDeparts(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.arrivedAt()
	r.activate()
	if err := r.agent.Retire(context.Background()); err != nil {
		t.Fatal(err)
	}
	if log := r.manager.State().Log; !slices.Contains(log, "depart "+session) {
		t.Errorf("the manager was not told: %v", log)
	}
	if got := value(t, r.metrics.armed); got != 0 {
		t.Errorf("%v ports are still armed", got)
	}
}

func TestReviewIsRepeatedWhenAnInterceptWaitsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{})
	r.arrivedAt()
	r.activate()
	// The owner goes away and comes back: agents see that it waits again.
	r.manager.SetIntercepts(managertest.Intercept("client-1", "one", "echo", func(i *manager.InterceptInfo) {
		i.Disposition = manager.InterceptDispositionType_NO_CLIENT
	}))
	eventually(t, "a disarmed port", func() bool { return value(t, r.metrics.armed) == 0 })
	r.activate()
	got := r.manager.State().Reviews
	if len(got) != 2 {
		t.Errorf("there were %d reviews: %v", len(got), got)
	}
	if d := cmp.Diff(got[0], got[1], protocmp.Transform(), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("the second review differs:\n%s", d)
	}
}
