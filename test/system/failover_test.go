package system

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/systest"
)

// rounds is how many leaders die per case; one of three has to come back
// before the next.
const rounds = 2

// TestInterceptSurvivesLeaderLoss kills leaders under an intercept whose client
// is attached to the leader, and to another server.
func TestInterceptSurvivesLeaderLoss(t *testing.T) {
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	local := systest.StartLocal(t)
	for _, tc := range []struct {
		name   string
		attach func(leader int) int
	}{
		{"attached to the leader", func(leader int) int { return leader }},
		{"attached to a follower", func(leader int) int { return (leader + 1) % 3 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range rounds {
				leader := c.Leader(t)
				attach := tc.attach(leader)
				i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port, Attach: attach})
				if got := i.Await(t, settle, "connected", 0).Address; got != c.Dev.Addresses[attach] {
					t.Fatalf("the client is attached to %s, want %s", got, c.Dev.Addresses[attach])
				}
				loseLeader(t, c, i, leader)
				i.Interrupt(t)
			}
		})
	}
	// Each in turn, so that the node's own server is among them.
	for server, p := range c.Dev.Servers {
		t.Run("the leader is told to stop/"+p.Name, func(t *testing.T) { stopLeader(t, c, local, server) })
	}
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
}

// stopLeader tells the leader, to which the client is attached, to stop, under
// load and while somebody writes through another server.
func stopLeader(t *testing.T, c *systest.Cluster, local *systest.Nginx, leader int) {
	c.Lead(t, leader)
	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port, Attach: leader})
	sessions := c.SessionIDs(t, leader)
	load := systest.StartLoad(c.V4, c.V6)
	defer load.Stop()
	w := startWriter(c, (leader+1)%3)
	defer w.stop()

	// A busy machine may have cost it the lead meanwhile.
	c.Lead(t, leader)
	signalled := time.Now()
	stopped := c.Dev.Servers[leader]
	if err := stopped.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-stopped.Done():
	case <-systest.Deadline(t, settle).Done():
		t.Fatalf("%s did not end", stopped.Name)
	}
	ended := time.Now()
	if err := load.Await(systest.Deadline(t, settle), 20, systest.Local, ended); err != nil {
		t.Fatal(err)
	}
	longest, err := w.stop()
	if err != nil {
		t.Errorf("a write failed while the leader stopped: %v", err)
	}
	if longest > time.Second {
		t.Errorf("a write took %s while the leader stopped", longest)
	}
	if next := c.Leader(t); next == leader {
		t.Errorf("%s still leads", stopped.Name)
	}
	wantLogged(t, stopped.LogFile, "leadership handed over")
	visits := load.Stop()
	if err := systest.WantAll(visits, systest.Local); err != nil {
		t.Errorf("while the leader stopped: %v", err)
	}
	if got := systest.Longest(visits); got > time.Second {
		t.Errorf("a visitor waited for %s while the leader stopped", got)
	}
	t.Logf("%s ended %s after SIGTERM, the longest write took %s, the longest visit %s", stopped.Name,
		ended.Sub(signalled).Round(time.Millisecond), longest.Round(time.Millisecond), systest.Longest(visits).Round(time.Millisecond))
	wantIntercept(t, c, i)
	wantSessions(t, c, sessions)
	c.Restart(t, leader)
	c.WantSameState(t)
	i.Interrupt(t)
}

// writer writes through one server, one write after the other.
type writer struct {
	stop func() (longest time.Duration, err error)
}

func startWriter(c *systest.Cluster, server int) *writer {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	var longest time.Duration
	var failed error
	go func() {
		defer close(done)
		for failed == nil && ctx.Err() == nil {
			began := time.Now()
			// One that is under way at the end is waited for.
			_, failed = c.Ops.Clients[server].PutConfig(context.WithoutCancel(ctx),
				&operatorv1.PutConfigRequest{Key: "writer", Value: []byte(began.String())})
			longest = max(longest, time.Since(began))
		}
	}()
	return &writer{stop: func() (time.Duration, error) {
		cancel()
		<-done
		return longest, failed
	}}
}

func wantLogged(t *testing.T, file, text string) {
	t.Helper()
	if err := logged(file, text); err != nil {
		t.Error(err)
	}
}

// logged wants a text in a log.
func logged(file, text string) error {
	raw, err := os.ReadFile(file)
	if err == nil && !strings.Contains(string(raw), text) {
		err = fmt.Errorf("%s does not say %q", file, text)
	}
	return err
}

// wantSessions wants exactly these sessions on every server that runs.
func wantSessions(t *testing.T, c *systest.Cluster, want []string) {
	t.Helper()
	for _, s := range c.Running() {
		if diff := cmp.Diff(want, c.SessionIDs(t, s)); diff != "" {
			t.Errorf("%s: the sessions before and after differ (-before +after):\n%s", c.Dev.Servers[s].Name, diff)
		}
	}
}

// loseLeader kills the leader, checks what must have survived, and starts it
// again.
func loseLeader(t *testing.T, c *systest.Cluster, i *systest.Intercept, leader int) {
	t.Helper()
	sessions := c.SessionIDs(t, leader)
	if !slices.Contains(sessions, i.Session) {
		t.Fatalf("the servers have the sessions %v, which lack the intercept's %s", sessions, i.Session)
	}
	killed := time.Now()
	if err := c.Dev.Servers[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	acked, err := c.Ops.FirstWrite(systest.Deadline(t, settle), leader)
	if err != nil {
		t.Fatal(err)
	}
	visits := systest.Together(t.Context(), 20, c.V4, c.V6)
	if err := systest.WantAll(visits, systest.Local); err != nil {
		t.Errorf("after the failover: %v", err)
	}
	t.Logf("%s was killed: first write after %s, 20 connections more answered after %s", c.Dev.Servers[leader].Name,
		acked.Sub(killed).Round(time.Millisecond), time.Since(acked).Round(time.Millisecond))
	wantIntercept(t, c, i)

	c.Restart(t, leader)
	c.WantSameState(t)
	wantIntercept(t, c, i)
	wantSessions(t, c, sessions)
	if renewed := i.Events("renewed", 0); len(renewed) > 0 {
		t.Errorf("the client got a new session: %+v", renewed)
	}
}

// wantIntercept wants the intercept, and no other, ACTIVE on every server that
// runs, each asked by itself.
func wantIntercept(t *testing.T, c *systest.Cluster, i *systest.Intercept) {
	t.Helper()
	for _, s := range c.Running() {
		got := c.Intercepts(t, s)
		if len(got) != 1 || got[0].ID != i.ID || got[0].Disposition != "ACTIVE" || got[0].OwnerState != "PRESENT" {
			t.Errorf("%s shows %+v, want the intercept %s ACTIVE with its owner PRESENT", c.Dev.Servers[s].Name, got, i.ID)
		}
	}
}
