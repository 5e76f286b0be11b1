package compose

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	operatorv1 "trivet/proto/trivet/operator/v1"
	"trivet/test/systest"
)

// TestComposition is the life of the composition: it comes up, is disturbed
// while it is used, comes up again over its own volumes and goes down.
func TestComposition(t *testing.T) {
	c := up(t)
	c.ownKeysOnly()
	c.answeredBy("sample app", "at first")
	c.intercept("the laptop")
	c.answeredBy("the laptop", "once it is intercepted")
	sessions := c.sessions()
	w := startWrites(t, c.all)
	w.goOn(t, "at first")

	for _, fault := range []struct {
		name           string
		begin, restore func(service, id string)
	}{
		{
			name:    "killed",
			begin:   func(_, id string) { c.run("docker", "kill", "--signal", "KILL", id) },
			restore: func(_, id string) { c.run("docker", "start", id) },
		},
		{
			name:    "paused",
			begin:   func(_, id string) { c.run("docker", "pause", id) },
			restore: func(_, id string) { c.run("docker", "unpause", id) },
		},
		{
			name:  "cut off",
			begin: func(_, id string) { c.run("docker", "network", "disconnect", c.project+"_default", id) },
			restore: func(name, id string) {
				c.run("docker", "network", "connect", "--alias", name, c.project+"_default", id)
			},
		},
	} {
		leader := c.leader("")
		id := c.container(leader)
		when := "while " + leader + ", which led, is " + fault.name
		fault.begin(leader, id)
		w.goOn(t, when)
		next := c.leader(leader)
		c.answeredBy("the laptop", when)
		fault.restore(leader, id)
		c.ready("after " + leader + " was " + fault.name)
		t.Logf("%s was %s, %s took over", leader, fault.name, next)
	}

	w.goOn(t, "at the end")
	w.end()
	c.agree()
	for i, op := range c.ops {
		w.kept(t, fmt.Sprintf("server-%d", i+1), op)
	}
	t.Logf("%d writes were acknowledged, none is lost", len(w.acked))
	if now := c.sessions(); !slices.Equal(now, sessions) {
		t.Errorf("sessions are %q, were %q", now, sessions)
	}
	c.intercepted()

	// The node lives in the sample's process namespace and ends with it.
	c.run("docker", "restart", c.container("sample"))
	c.answeredBy("the laptop", "after the sample was restarted")

	// Again over the same volumes: certificates are kept, state is there.
	c.do("stop", "server-1", "server-2", "server-3")
	c.do("up", "-d")
	c.ready("after all servers were stopped")
	c.agree()
	c.answeredBy("the laptop", "after all servers were stopped")
	c.intercepted()
}

// intercepted checks that the intercept is there and active.
func (c *composition) intercepted() {
	c.t.Helper()
	systest.Eventually(c.t, settle, "the intercept is active", func() error {
		r, err := c.all.ListIntercepts(systest.Deadline(c.t, askTime), &operatorv1.ListInterceptsRequest{})
		if err != nil {
			return err
		}
		if all := r.GetIntercepts(); len(all) != 1 || all[0].GetName() != "mine" || all[0].GetDisposition() != "ACTIVE" {
			return errors.New("intercepts are " + r.String())
		}
		return nil
	})
}

// ownKeysOnly checks that a server's container holds no key but its own.
func (c *composition) ownKeysOnly() {
	c.t.Helper()
	id := c.container("server-1")
	keys := func(folder string) (found []string) {
		files := tar.NewReader(strings.NewReader(c.run("docker", "cp", id+":"+folder, "-")))
		for {
			h, err := files.Next()
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) { // run trims the end
				return found
			}
			if err != nil {
				c.t.Fatal(err)
			}
			if path.Ext(h.Name) == ".key" {
				found = append(found, h.Name)
			}
		}
	}
	if found := keys("/identity"); !slices.Equal(found, []string{"identity/tls.key"}) {
		c.t.Errorf("keys of server-1: %q", found)
	}
	if found := keys("/pki"); len(found) > 0 {
		c.t.Errorf("server-1 has keys of others: %q", found)
	}
}
