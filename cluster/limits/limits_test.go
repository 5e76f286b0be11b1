package limits

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

var (
	alice = pki.ID{Cluster: "test", Role: pki.RoleClient, Name: "alice"}
	bob   = pki.ID{Cluster: "test", Role: pki.RoleClient, Name: "bob"}
	node  = pki.ID{Cluster: "test", Role: pki.RoleNode, Name: "node-1"}
	peer  = pki.ID{Cluster: "test", Role: pki.RoleServer, Name: "server-1"}
)

const (
	watch  = "/telepresence.manager.Manager/WatchAgents"
	tunnel = "/telepresence.manager.Manager/Tunnel"
)

func refusedFor(t *testing.T, err error, reason string) {
	t.Helper()
	if errs.Code(err) != codes.ResourceExhausted || errs.From(err).Reason != reason || errs.From(err).Hint == "" {
		t.Fatalf("got %v, want ResourceExhausted for %s with a hint", err, reason)
	}
}

func TestStreamsOfAnIdentityAreBounded(t *testing.T) {
	l := New(Config{Watches: 2, Tunnels: 1})
	var done []func()
	open := func(id pki.ID, method string) error {
		d, err := l.open(id, method)
		if err == nil {
			done = append(done, d)
		}
		return err
	}
	for range 2 {
		if err := open(alice, watch); err != nil {
			t.Fatal(err)
		}
	}
	refusedFor(t, open(alice, watch), ReasonWatches)
	if err := open(alice, tunnel); err != nil {
		t.Fatalf("tunnels are counted apart: %v", err)
	}
	refusedFor(t, open(alice, tunnel), ReasonTunnels)
	if err := open(bob, watch); err != nil {
		t.Fatalf("others are counted apart: %v", err)
	}
	for range 2 * NodeFactor {
		if err := open(node, watch); err != nil {
			t.Fatalf("a node watches for its pods: %v", err)
		}
	}
	refusedFor(t, open(node, watch), ReasonWatches)
	for range 10_000 {
		if err := open(peer, watch); err != nil {
			t.Fatalf("servers are not bounded: %v", err)
		}
	}
	done[0]()
	if err := open(alice, watch); err != nil {
		t.Fatalf("after one was closed: %v", err)
	}
	if r := l.Refused(); r[ReasonWatches] != 2 || r[ReasonTunnels] != 1 {
		t.Errorf("counted %v", r)
	}
}

func TestCallsPerSecondAreBounded(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := New(Config{CallsPerSecond: 10})
	l.now = func() time.Time { return now }
	for i := range 20 {
		if err := l.call(alice); err != nil {
			t.Fatalf("call %d of the two seconds saved up: %v", i, err)
		}
	}
	err := l.call(alice)
	refusedFor(t, err, ReasonRate)
	if err := l.call(bob); err != nil {
		t.Fatalf("others are counted apart: %v", err)
	}
	now = now.Add(time.Second)
	for i := range 10 {
		if err := l.call(alice); err != nil {
			t.Fatalf("call %d a second later: %v", i, err)
		}
	}
	refusedFor(t, l.call(alice), ReasonRate)
	for range 1000 {
		if err := l.call(node); err != nil {
			t.Fatal(err)
		}
	}
}

func TestIdentitiesAreForgotten(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := New(Config{})
	l.now = func() time.Time { return now }
	done, err := l.open(alice, watch)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxIdentities {
		now = now.Add(time.Millisecond)
		if err := l.call(pki.ID{Cluster: "test", Role: pki.RoleClient, Name: fmt.Sprint("user-", i)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.users); n > maxIdentities+2001 {
		t.Errorf("%d identities are remembered", n)
	}
	if u := l.users[alice.String()]; u == nil || u.watches != 1 {
		t.Error("an identity with an open watch was forgotten")
	}
	done()
}
