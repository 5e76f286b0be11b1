package system

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/test/systest"
)

// TestForegroundIntercept is the command as a developer has it in a terminal.
func TestForegroundIntercept(t *testing.T) {
	systest.Require(t, systest.NGINX, systest.Curl)
	c := systest.Start(t)
	local := systest.StartLocal(t)
	t.Run("nobody listens", func(t *testing.T) { nobodyListens(t, c) })
	t.Run("Ctrl-C leaves nothing", func(t *testing.T) { interrupted(t, c, local) })
	// Last, because it leaves a session behind.
	t.Run("the owner vanishes", func(t *testing.T) { ownerVanishes(t, c, local) })
}

// nobodyListens intercepts for a local process that is not there.
func nobodyListens(t *testing.T, c *systest.Cluster) {
	port := systest.FreePort(t)
	i := c.Launch(t, systest.Create{Name: "main", Local: port})
	warning := i.Await(t, settle, "warning", 0)
	wantText(t, "warning", warning.Message, fmt.Sprintf("nothing listens on 127.0.0.1:%d", port))
	wantText(t, "hint", warning.Hint, fmt.Sprintf("port %d", port))
	if created := i.Events("created", 0); len(created) > 0 {
		t.Errorf("the warning came after the intercept: %+v", created)
	}
	i.Await(t, settle, "active", 0)
	// Active means that new connections are stolen, from the moment on that
	// the agent has armed the port.
	systest.Eventually(t, settle, "a visitor is refused", func() error {
		if v := c.V4.Visit(t.Context()); v.Err == nil {
			return fmt.Errorf("a visit was %v", v)
		}
		return nil
	})

	for _, v := range []*systest.Visitor{c.V4, c.V6} {
		from := i.Mark()
		r := c.Curl(systest.Deadline(t, settle), t, v.URL("index.html"))
		if r.Code != systest.CurlReceiveError && r.Code != systest.CurlEmptyAnswer && r.Code != systest.CurlRefused {
			t.Errorf("curl: exit %d, printed %q, %s; want a reset", r.Code, r.Out, r.Err)
		}
		if r.Took > time.Second {
			t.Errorf("the visitor was refused after %s", r.Took)
		}
		refused := i.Await(t, settle, "refused", from)
		wantText(t, "refusal", refused.Message, "nothing listens on")
		wantText(t, "hint of the refusal", refused.Hint, fmt.Sprintf("port %d", port))
	}

	// The process comes up: no more is needed.
	ln, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn := open(t, c.V4)
	if _, err := ln.Accept(); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	i.Interrupt(t)
	c.WantSameState(t)
}

func wantText(t *testing.T, what, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("the %s says %q, want %q in it", what, got, want)
	}
}

// interrupted ends the command with Ctrl-C.
func interrupted(t *testing.T, c *systest.Cluster, local *systest.Nginx) {
	before := c.SessionIDs(t, 0)
	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port, Attach: 1})
	if !slices.Contains(c.SessionIDs(t, 2), i.Session) {
		t.Errorf("the session %s is not shown", i.Session)
	}
	i.Interrupt(t)
	if removed := i.Events("removed", 0); len(removed) != 1 {
		t.Errorf("removed was said %d times, want once", len(removed))
	}
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
	for s := range c.Dev.Servers {
		if got := c.Intercepts(t, s); len(got) != 0 {
			t.Errorf("server %d still shows %+v", s, got)
		}
		if diff := cmp.Diff(before, c.SessionIDs(t, s)); diff != "" {
			t.Errorf("server %d: the sessions before and after differ (-before +after):\n%s", s, diff)
		}
	}
}

const (
	// ownerGrace is how long an owner may be away, leaderGrace the age under
	// which a leader takes nobody for gone, because it may not have heard of
	// everybody yet; awayMargin is what may come on top until new connections
	// go to the app.
	ownerGrace  = 5 * time.Second
	leaderGrace = 10 * time.Second
	awayMargin  = 3 * time.Second
)

// ownerVanishes kills the client, as a laptop that loses its power.
func ownerVanishes(t *testing.T, c *systest.Cluster, local *systest.Nginx) {
	i := c.Intercept(t, systest.Create{Name: "main", Local: local.Port})
	load := systest.StartLoad(c.V4, c.V6)
	defer load.Stop()
	killed := time.Now()
	if err := i.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := load.Await(systest.Deadline(t, settle), 20, systest.App, killed); err != nil {
		t.Fatal(err)
	}
	limit := max(ownerGrace, c.Started.Add(leaderGrace).Sub(killed)) + awayMargin
	if took := time.Since(killed); took > limit {
		t.Errorf("the app answered 20 connections only %s after the kill, want at most %s", took, limit)
	}
	systest.Eventually(t, limit, "the owner is shown as away", func() error {
		for _, s := range c.Running() {
			got := c.Intercepts(t, s)
			if len(got) != 1 || got[0].ID != i.ID {
				t.Fatalf("server %d shows %+v, want the intercept %s", s, got, i.ID)
			}
			if got[0].OwnerState != "AWAY" {
				return fmt.Errorf("server %d shows %+v", s, got[0])
			}
		}
		return nil
	})
	away := time.Now()
	if err := load.Await(systest.Deadline(t, settle), 20, systest.App, away); err != nil {
		t.Fatal(err)
	}
	for _, v := range systest.After(load.Stop(), away) {
		if v.Err != nil || v.By != systest.App {
			t.Errorf("a connection that began when the owner was away: %v", v)
		}
	}

	// Whoever asks for it may have the port now.
	other := c.Intercept(t, systest.Create{Name: "mine", Local: local.Port, Context: systest.OtherClientContext, Args: []string{"--force"}})
	answeredBy(t, c, systest.Local)
	other.Interrupt(t)
	answeredBy(t, c, systest.App)
	c.WantSameState(t)
}
