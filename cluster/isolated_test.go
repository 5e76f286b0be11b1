package cluster_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/clustertest"
	"trivet/internal/pki"
	"trivet/proto/telepresence/manager"
	"trivet/proto/telepresence/managersvc"
)

// TestIsolatedServerSendsPeersAway: a server without a majority tells clients to
// try again (Aborted), agents nothing, and closes connections so that peers look
// for another server. No session loses time by that.
func TestIsolatedServerSendsPeersAway(t *testing.T) {
	f := newFleet(t, 3)
	leader := f.Leader()
	var last *clustertest.Member
	for _, m := range f.Servers {
		if m != leader {
			last = m
		}
	}
	conn := f.Conn(last, pki.RoleClient, "alice")
	alice := managersvc.NewManagerClient(conn)
	sess := f.arriveClient(alice, "alice")
	node := managersvc.NewManagerClient(f.Conn(last, pki.RoleNode, "node-1"))
	agent, err := node.ArriveAsAgent(f.ctx, f.agentInfo())
	must(t, err)
	watch, err := alice.WatchIntercepts(f.ctx, sess)
	receive(t, watch, err)
	agentWatch, err := node.WatchIntercepts(f.ctx, agent)
	receive(t, agentWatch, err)

	for _, m := range f.Servers {
		if m != last {
			f.Stop(m)
		}
	}
	began := time.Now()
	client, agents := make(chan error, 1), make(chan error, 1)
	actx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	go func() { _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: sess}); client <- err }()
	go func() { _, err := node.Remain(actx, &manager.RemainRequest{Session: agent}); agents <- err }()
	_, err = watch.Recv()
	if status.Code(err) != codes.Unavailable {
		t.Errorf("the client's watch ended with %v", err)
	}
	if waited := time.Since(began); waited < 5*time.Second {
		t.Errorf("it was sent away after %s already", waited)
	}
	// Of the codes that the client may see only NotFound would make it give up its
	// session; whichever comes first, the answer or the end of the connection.
	if err := <-client; status.Code(err) != codes.Aborted && status.Code(err) != codes.Unavailable {
		t.Errorf("the client's keepalive: %v", err)
	}
	if err := <-agents; status.Code(err) != codes.Unavailable {
		t.Errorf("the agent's keepalive: %v", err)
	}
	// Whoever finds no other server is served here again.
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		if !conn.WaitForStateChange(f.ctx, state) {
			t.Fatal(f.ctx.Err())
		}
	}
	if _, err := alice.Version(f.ctx, new(emptypb.Empty)); err != nil {
		t.Errorf("after it came back: %v", err)
	}
	again, err := alice.WatchIntercepts(f.ctx, sess)
	receive(t, again, err)

	// With a majority the sessions are as they were.
	for _, m := range f.Servers {
		if m != last {
			f.Restart(m)
		}
	}
	f.Leader()
	clustertest.Eventually(t, "keepalives are answered", func() bool {
		_, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: sess})
		if status.Code(err) == codes.NotFound {
			t.Fatal(err)
		}
		return err == nil
	})
	if _, err := node.Remain(f.ctx, &manager.RemainRequest{Session: agent}); err != nil {
		t.Errorf("the agent's session: %v", err)
	}
	_, err = alice.Depart(f.ctx, sess)
	must(t, err)
	if _, err := alice.Remain(f.ctx, &manager.RemainRequest{Session: sess}); status.Code(err) != codes.NotFound {
		t.Errorf("after its departure: %v", err)
	}
}
