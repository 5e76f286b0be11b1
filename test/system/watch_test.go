package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trivet/test/systest"
)

// watched is what a watch command has printed, line by line.
type watched struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// change is one line of a watch.
type change struct {
	Op       string `json:"op"`
	Key      string `json:"key"`
	Revision uint64 `json:"revision"`
	Action   string `json:"action"` // of an audit record
	Number   uint64 `json:"number"`
	Class    string `json:"class"`
}

func (w *watched) changes(t *testing.T) []change {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []change
	for line := range bytes.Lines(w.buf.Bytes()) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		var c change
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("the watch printed %q: %v", line, err)
		}
		out = append(out, c)
	}
	return out
}

// watch starts a command that shows what happens, attached to one server first.
func watch(t *testing.T, c *systest.Cluster, name string, first int, args ...string) (*systest.Process, *watched) {
	t.Helper()
	out := new(watched)
	for i := range c.Dev.Addresses {
		args = append(args, "--server", c.Dev.Addresses[(first+i)%len(c.Dev.Addresses)])
	}
	return systest.Launch(t, systest.Command{
		Name: name, Path: systest.Binary(t), Args: append(args, "-o", "jsonl"), Env: c.Env(systest.OperatorContext), Stdout: out,
	}), out
}

// TestWatchCommandsOutliveTheirServer: each change is shown once and in order,
// whatever server dies.
func TestWatchCommandsOutliveTheirServer(t *testing.T) {
	c := systest.Start(t)
	sessions, sessionsOut := watch(t, c, "session-watch", 0, "session", "watch")
	workloads, workloadsOut := watch(t, c, "workload-watch", 1, "workload", "watch")
	audit, auditOut := watch(t, c, "audit-follow", 2, "audit", "list", "--follow", "--class", "action")

	put := func(key string) {
		t.Helper()
		if r := c.Trivet(t, systest.OperatorContext, "operator", "config", "set", key, "x"); r.Code != 0 {
			t.Fatalf("set %s: %s", key, r.Err)
		}
	}
	arrive := func() (id string) {
		t.Helper()
		i := c.Launch(t, systest.Create{Name: "watched", Local: systest.FreePort(t)})
		id = i.Await(t, settle, "created", 0).Session
		i.Interrupt(t)
		return id
	}
	// seen waits until an arrival and a departure were shown.
	seen := func(id string) {
		t.Helper()
		systest.Eventually(t, settle, "the session was shown to come and go", func() error {
			var ops []string
			for _, x := range sessionsOut.changes(t) {
				if x.Key == id && (len(ops) == 0 || ops[len(ops)-1] != x.Op) {
					ops = append(ops, x.Op)
				}
			}
			if strings.Join(ops, " ") != "put delete" {
				return fmt.Errorf("%s: %v", id, ops)
			}
			return nil
		})
	}
	// What comes and goes before the watch has begun is not shown.
	systest.Eventually(t, settle, "the watch of sessions has begun", func() error {
		arrive()
		if len(sessionsOut.changes(t)) == 0 {
			return errors.New("it has shown nothing yet")
		}
		return nil
	})
	put("a/0")
	seen(arrive())
	for server := range c.Dev.Servers {
		if err := c.Dev.Servers[server].Kill(); err != nil {
			t.Fatal(err)
		}
		put(fmt.Sprintf("a/%d", server+1))
		seen(arrive())
		c.Restart(t, server)
		c.WantSameState(t)
	}
	systest.Eventually(t, settle, "each record was shown once", func() error {
		counts := make(map[uint64]int)
		for _, x := range auditOut.changes(t) {
			counts[x.Number]++
			if counts[x.Number] > 1 || x.Class != "action" {
				t.Fatalf("record %d of class %s was shown %d times", x.Number, x.Class, counts[x.Number])
			}
		}
		for n := range uint64(len(counts)) {
			if counts[n+1] == 0 {
				return fmt.Errorf("record %d was left out", n+1)
			}
		}
		if len(counts) < len(c.Dev.Servers)+1 {
			return fmt.Errorf("%d records", len(counts))
		}
		return nil
	})
	var last uint64
	for _, x := range sessionsOut.changes(t) {
		if x.Revision < last {
			t.Errorf("revision %d was shown after %d", x.Revision, last)
		}
		last = x.Revision
	}
	if all := workloadsOut.changes(t); len(all) == 0 || !strings.HasSuffix(all[0].Key, systest.Workload) {
		t.Errorf("workloads: %v", all)
	}
	for _, p := range []*systest.Process{sessions, workloads, audit} {
		if err := p.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		code, err := p.Wait(ctx)
		cancel()
		if err != nil || code != 130 {
			t.Errorf("%s: exit %d, %v; %s", p.Name, code, err, p.ErrOut())
		}
	}
}

// TestLogLevelCommand: what it sets can be seen in the servers' logs.
func TestLogLevelCommand(t *testing.T) {
	c := systest.StartServers(t)
	op := func(args ...string) systest.Result {
		t.Helper()
		r := c.Trivet(t, systest.OperatorContext, args...)
		if r.Code != 0 {
			t.Fatalf("%v: %s", args, r.Err)
		}
		return r
	}
	c.Trivet(t, systest.OperatorContext, "loglevel", "set", "loud").WantFailure(t, 2, `log level "loud" is not known`, "use error, warn, info, debug, trace")
	op("loglevel", "set", "debug", "--for", "1h")
	if r := op("loglevel", "list"); !strings.Contains(r.Out, "everything") || !strings.Contains(r.Out, "debug") {
		t.Errorf("list: %s", r.Out)
	}
	for _, s := range c.Dev.Servers {
		systest.Eventually(t, settle, s.Name+" logs at debug", func() error { return logged(s.LogFile, "the log is at another level") })
	}
	op("loglevel", "reset")
	for _, s := range c.Dev.Servers {
		systest.Eventually(t, settle, s.Name+" logs as configured", func() error {
			return logged(s.LogFile, "the log is at its configured level again")
		})
	}
	if r := op("loglevel", "list", "-o", "jsonl"); r.Out != "" {
		t.Errorf("list after the reset: %s", r.Out)
	}
	op("operator", "config", "set", "telepresence/excluded-environment", "SECRET")
	if r := op("operator", "config", "get", "telepresence/excluded-environment"); r.Out != "SECRET" {
		t.Errorf("get: %q", r.Out)
	}
	c.Trivet(t, systest.OperatorContext, "operator", "config", "set", "telepresence/cluster.yaml", "podSubnets: [10.0.0.1/8]").
		WantFailure(t, 2, "is no subnet", "did you mean 10.0.0.0/8?")
	op("operator", "config", "delete", "telepresence/excluded-environment")
	c.Trivet(t, systest.OperatorContext, "operator", "config", "get", "telepresence/excluded-environment").WantFailure(t, 3, "not found", "trivet operator config list")
}
