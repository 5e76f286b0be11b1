package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"trivet/cluster/clustertest"
	"trivet/cluster/engine"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/proto/trivet/operator/v1/operatorsvc"
)

// transfer hands leadership to a random other server and waits until all know.
func transfer(t *testing.T, c *clustertest.Cluster) {
	t.Helper()
	old := c.Leader()
	op := operatorsvc.NewOperatorClient(c.Conn(old, pki.RoleOperator, "op"))
	clustertest.Eventually(t, "leadership is handed over", func() bool {
		_, err := op.TransferLeadership(testContext(t), new(operatorv1.TransferLeadershipRequest))
		return err == nil
	})
	clustertest.Eventually(t, "another leader", func() bool { return c.Leader() != old })
}

// TestExactlyOnceThroughChangesOfTheLeader: half of the writers number their
// writes and repeat them themselves, the others leave both to their server.
func TestExactlyOnceThroughChangesOfTheLeader(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	ops := operators(c)
	const writers = 64
	type write struct {
		key      string
		revision uint64
	}
	var (
		mu    sync.Mutex
		acked []write
		count atomic.Int64
		stop  = make(chan struct{})
		wg    sync.WaitGroup
	)
	for w := range writers {
		wg.Go(func() {
			for i := 1; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("w%d-%d", w, i)
				rev, err := writeOnce(ctx, ops, w, i, key)
				if err != nil {
					t.Errorf("write %s: %v", key, err)
					return
				}
				mu.Lock()
				acked = append(acked, write{key, rev})
				mu.Unlock()
				count.Add(1)
			}
		})
	}
	for range 5 {
		before := count.Load()
		clustertest.Eventually(t, "the writers get on", func() bool { return count.Load() >= before+2*writers })
		transfer(t, c)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d writes were acknowledged", len(acked))
	reader := ops[0]
	lin := metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "linearizable")
	if _, err := reader.GetConfig(lin, &operatorv1.GetConfigRequest{Key: acked[len(acked)-1].key}); err != nil {
		t.Fatal(err)
	}
	seen := make(map[uint64]string)
	for _, w := range acked {
		got, err := reader.GetConfig(metadata.AppendToOutgoingContext(ctx, engine.MetaConsistency, "stale"), &operatorv1.GetConfigRequest{Key: w.key})
		if err != nil {
			t.Fatalf("an acknowledged write is gone: %s: %v", w.key, err)
		}
		// A second application would have moved it.
		if got.GetModifyRevision() != w.revision {
			t.Errorf("%s was acknowledged at revision %d and is at %d", w.key, w.revision, got.GetModifyRevision())
		}
		if other, dup := seen[w.revision]; dup {
			t.Errorf("%s and %s have the same revision %d", w.key, other, w.revision)
		}
		seen[w.revision] = w.key
	}
	c.SameDigests()
}

// writeOnce writes a key exactly once, trying one server after another. Only a
// write with the writer's own number may be repeated.
func writeOnce(ctx context.Context, ops []operatorsvc.OperatorClient, writer, n int, key string) (uint64, error) {
	req := &operatorv1.PutConfigRequest{Key: key, Value: []byte(key)}
	if writer%2 == 0 {
		put, err := ops[(writer+n)%len(ops)].PutConfig(ctx, req)
		return put.GetRevision(), err
	}
	numbered := metadata.AppendToOutgoingContext(ctx, engine.MetaRequest, fmt.Sprintf("w%d/%d/%d", writer, n, n))
	var err error
	for try := range 10 {
		// A short limit makes repetitions meet attempts that are still under way.
		actx, cancel := context.WithTimeout(numbered, 300*time.Millisecond)
		var put *operatorv1.PutConfigResponse
		put, err = ops[(writer+n+try)%len(ops)].PutConfig(actx, req)
		cancel()
		if err == nil {
			return put.GetRevision(), nil
		}
	}
	return 0, err
}

// keepAlive sends Remain for a session twice a second until the returned
// function is called, which says how that went.
func keepAlive(ctx context.Context, m managersvc.ManagerClient, s *manager.SessionInfo) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	out := make(chan error, 1)
	go func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			if _, err := m.Remain(ctx, &manager.RemainRequest{Session: s}); err != nil && ctx.Err() == nil {
				out <- err
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				out <- nil
				return
			}
		}
	}()
	return func() error { cancel(); return <-out }
}

// TestSessionsSurviveFailovers: an older agent that lives 2 s after each
// Remain, through five leaders and the stop of one, and then one that is silent.
func TestSessionsSurviveFailovers(t *testing.T) {
	f := newFleet(t, 3, shortLimits)
	// The node's own stream must not end with the server that is stopped.
	stays := f.Servers[0]
	node := f.manager(0, pki.RoleNode, "node-1")
	alice := f.manager(0, pki.RoleClient, "alice")
	sess := f.arriveClient(alice, "alice")
	agents, err := alice.WatchAgents(f.ctx, sess)
	must(t, err)
	first, err := agents.Recv()
	must(t, err)
	if len(first.GetAgents()) != 0 {
		t.Fatalf("agents before any arrived: %v", first)
	}
	info := f.agentInfo()
	info.PodUid, info.Version = "", "2.10.0" // the older generation knows no uid
	agent, err := node.ArriveAsAgent(f.ctx, info)
	must(t, err)
	// WatchDial shows the older generation.
	dials, err := node.WatchDial(f.ctx, agent)
	must(t, err)
	_, err = dials.Header()
	must(t, err)
	stop := keepAlive(f.ctx, node, agent)

	snapshots := make(chan int, 64)
	watchEnd := make(chan error, 1)
	go func() {
		for {
			m, err := agents.Recv()
			if err != nil {
				watchEnd <- err
				return
			}
			snapshots <- len(m.GetAgents())
		}
	}()
	shows := func(want int) {
		t.Helper()
		select {
		case n := <-snapshots:
			if n != want {
				t.Fatalf("the watch shows %d agents, want %d", n, want)
			}
		case err := <-watchEnd:
			t.Fatalf("the watch ended while %d agents were to come: %v", want, err)
		}
	}
	shows(1)
	for range 5 {
		transfer(t, f.Cluster)
	}
	// Never stop the one that the streams are on.
	for f.Leader() == stays {
		transfer(t, f.Cluster)
	}
	stopped := f.Leader()
	f.Stop(stopped)
	f.Leader()
	status, err := operatorsvc.NewOperatorClient(f.Conn(stays, pki.RoleOperator, "op")).Status(f.ctx, new(operatorv1.StatusRequest))
	must(t, err)
	if term := status.GetTerm(); term < 7 {
		t.Errorf("the term is %d: the leader did not change as often as this test needs", term)
	}
	// Longer than the period of the last leader, which began with a full one.
	settled := time.NewTimer(3 * time.Second)
	defer settled.Stop()
	select {
	case n := <-snapshots:
		t.Errorf("the watch shows a change, %d agents", n)
	case err := <-watchEnd:
		t.Fatalf("the watch ended: %v", err)
	case <-settled.C:
	}
	if err := stop(); err != nil {
		t.Errorf("Remain: %v", err)
	}
	silent := time.Now()
	shows(0)
	if took := time.Since(silent); took < time.Second {
		t.Errorf("it expired %s after its last Remain", took)
	}
	if _, err := node.Remain(f.ctx, &manager.RemainRequest{Session: agent}); errs.Code(err) != codes.NotFound {
		t.Errorf("Remain of the expired session: %v, want NotFound", err)
	}
	f.Restart(stopped)
	f.SameDigests()
}

// TestRemainIsHeldWithoutALeader: an error would make older peers tear
// themselves down; it is answered once there is a leader again.
func TestRemainIsHeldWithoutALeader(t *testing.T) {
	f := newFleet(t, 3)
	survivor := f.Followers()[0]
	m := managersvc.NewManagerClient(f.Conn(survivor, pki.RoleClient, "alice"))
	sess := f.arriveClient(m, "alice")
	var down []*clustertest.Member
	for _, s := range f.Servers {
		if s != survivor {
			down = append(down, s)
		}
	}
	for _, s := range down {
		f.Stop(s)
	}
	clustertest.Eventually(t, "the survivor knows that there is no leader", func() bool { return !survivor.Server.Ready() })
	out := make(chan error, 1)
	go func() {
		_, err := m.Remain(f.ctx, &manager.RemainRequest{Session: sess})
		out <- err
	}()
	// A write gives up after its hold; the Remain that was sent before does not.
	op := operatorsvc.NewOperatorClient(f.Conn(survivor, pki.RoleOperator, "op"))
	_, err := op.PutConfig(f.ctx, &operatorv1.PutConfigRequest{Key: "k"})
	if errs.Code(err) != codes.Unavailable || errs.Reason(err) != "NO_LEADER" {
		t.Errorf("a write without a leader: %v (%s), want NO_LEADER", err, errs.Reason(err))
	}
	select {
	case err := <-out:
		t.Fatalf("Remain was answered without a leader: %v", err)
	default:
	}
	// What needs no leader is served: it is what one looks at now.
	if st, err := op.Status(f.ctx, new(operatorv1.StatusRequest)); err != nil || st.GetLeader() != "" || st.GetReady() {
		t.Errorf("status: %v, %v", st, err)
	}
	if _, err := op.ListSessions(metadata.AppendToOutgoingContext(f.ctx, engine.MetaConsistency, "stale"), new(operatorv1.ListSessionsRequest)); err != nil {
		t.Errorf("a stale read: %v", err)
	}
	f.Restart(down[0])
	if err := <-out; err != nil {
		t.Errorf("Remain after a leader was back: %v", err)
	}
	f.Restart(down[1])
	f.SameDigests()
}

// TestWatchesOnOtherServersSurviveTheLeader: streams on followers notice
// neither the change nor the stop of a leader, and see what others write.
func TestWatchesOnOtherServersSurviveTheLeader(t *testing.T) {
	f := newFleet(t, 3)
	at := f.Followers()[0]
	m := managersvc.NewManagerClient(f.Conn(at, pki.RoleClient, "alice"))
	sess := f.arriveClient(m, "alice")
	f.arriveAgent(f.manager(0, pki.RoleNode, "node-1"))
	watch, err := m.WatchIntercepts(f.ctx, sess)
	must(t, err)
	if first, err := watch.Recv(); err != nil || len(first.GetIntercepts()) != 0 {
		t.Fatalf("first message: %v, %v", first, err)
	}
	elsewhere := func() managersvc.ManagerClient {
		return managersvc.NewManagerClient(f.Conn(f.Leader(), pki.RoleClient, "alice"))
	}
	sees := func(want string) {
		t.Helper()
		for {
			got, err := watch.Recv()
			if err != nil {
				t.Fatalf("the watch ended while waiting for %q: %v", want, err)
			}
			if want == "" && len(got.GetIntercepts()) == 0 {
				return
			}
			if len(got.GetIntercepts()) == 1 && got.GetIntercepts()[0].GetSpec().GetName() == want {
				return
			}
		}
	}
	create := func(name string) {
		t.Helper()
		_, err := elsewhere().CreateIntercept(f.ctx, &manager.CreateInterceptRequest{Session: sess, InterceptSpec: spec(name)})
		must(t, err)
		sees(name)
		_, err = elsewhere().RemoveIntercept(f.ctx, &manager.RemoveInterceptRequest2{Session: sess, Name: name})
		must(t, err)
		sees("")
	}
	create("through-the-first")
	for f.Leader() == at || f.Leader() == f.Servers[0] {
		transfer(t, f.Cluster)
		if f.Leader() == at {
			continue
		}
		create("through-another")
		break
	}
	if leader := f.Leader(); leader != at {
		f.Stop(leader)
		defer func() {
			f.Restart(leader)
			f.SameDigests()
		}()
	}
	f.Leader()
	create("after-a-stop")
}

// TestLeaderThatStopsHandsOver: its successor does not have to be found out.
func TestLeaderThatStopsHandsOver(t *testing.T) {
	c := clustertest.Start(t, 3, nil)
	ctx := testContext(t)
	old, others := c.Leader(), c.Followers()
	op := operatorsvc.NewOperatorClient(c.Conn(others[0], pki.RoleOperator, "op"))
	before, err := op.Status(ctx, new(operatorv1.StatusRequest))
	if err != nil {
		t.Fatal(err)
	}
	// A stream on the leader is told why it ends.
	m := managersvc.NewManagerClient(c.Conn(old, pki.RoleOperator, "op"))
	stream, err := m.WatchIntercepts(ctx, new(manager.SessionInfo))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return
			}
		}
	}()
	c.Stop(old)
	if err := <-ended; errors.Is(err, io.EOF) || errs.Code(err) != codes.Unavailable || errs.Reason(err) != "SERVER_STOPPING" {
		t.Errorf("the stream ended with %v (%s), want SERVER_STOPPING", err, errs.Reason(err))
	}
	if _, err := op.PutConfig(ctx, &operatorv1.PutConfigRequest{Key: "k"}); err != nil {
		t.Error(err)
	}
	after, err := op.Status(ctx, new(operatorv1.StatusRequest))
	if err != nil {
		t.Fatal(err)
	}
	if after.GetTerm() != before.GetTerm()+1 {
		t.Errorf("the term went from %d to %d, want one election", before.GetTerm(), after.GetTerm())
	}
	for _, s := range others {
		if n := s.Server.Elections(); n != 0 {
			t.Errorf("%s started %d elections by its death watch", s.Name, n)
		}
	}
	c.Restart(old)
	c.SameDigests()
}

// TestActorsThatCannotGoOn: another server takes over if there is one; if not,
// the actors are started again.
func TestActorsThatCannotGoOn(t *testing.T) {
	t.Run("three servers", func(t *testing.T) {
		c := clustertest.Start(t, 3, nil)
		old := c.Leader()
		clustertest.Eventually(t, "another server leads", func() bool {
			if c.Leader() != old {
				return true
			}
			// Again: its actors may only just be starting, and what is said of
			// actors that are not there yet does not count.
			old.Server.Escalate(errors.New("a test says so"))
			return false
		})
		c.SameDigests()
	})
	t.Run("one server", func(t *testing.T) {
		f := newFleet(t, 1)
		m := f.manager(0, pki.RoleClient, "alice")
		sess := f.arriveClient(m, "alice")
		for range 2 {
			f.Servers[0].Server.Escalate(errors.New("a test says so"))
			// The keepalive needs the actors.
			if _, err := m.Remain(f.ctx, &manager.RemainRequest{Session: sess}); err != nil {
				t.Error(err)
			}
		}
		f.SameDigests()
	})
}
