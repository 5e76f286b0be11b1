package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trivet/internal/spawn"
)

func TestCPUTimeOfAProcessWithABadName(t *testing.T) {
	const stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 100 0 0 0 150 25 0 0 20 0 10 0 1 2 3"
	if got, err := parseCPU(stat); err != nil || got != 1750*time.Millisecond {
		t.Errorf("got %v, %v, want 1.75s", got, err)
	}
	if _, err := parseCPU("42 (a) S 1"); err == nil {
		t.Error("half a line was taken")
	}
}

func newProc(t *testing.T, script string) *proc {
	t.Helper()
	sp := spawn.New()
	p := &proc{name: "p", log: filepath.Join(t.TempDir(), "log"), exe: "/bin/sh", args: []string{"-c", script}, spawn: sp}
	t.Cleanup(func() {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
		sp.Close()
	})
	return p
}

func TestProcessIsStartedStoppedAndStartedAgain(t *testing.T) {
	p := newProc(t, "echo up; exec sleep 1000")
	p.env = []string{"X=1"}
	if p.running() || p.wait(t.Context()) != nil {
		t.Error("it runs before its start")
	}
	if err := p.signal(syscall.SIGTERM); err == nil {
		t.Error("a process that was never started took a signal")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for n := range 2 {
		if err := p.start(); err != nil {
			t.Fatal(err)
		}
		if err := p.signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := p.wait(ctx); err != nil || p.running() {
			t.Fatalf("start %d: %v, running %v", n, err, p.running())
		}
	}
}

func TestLogIsReadFromAPlace(t *testing.T) {
	p := newProc(t, "")
	if err := os.WriteFile(p.log, []byte("before\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := p.logged()
	f, err := os.OpenFile(p.log, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("after\n"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := p.said(at); got != "after\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := p.said(1000); got != "" || err != nil {
		t.Errorf("past the end: %q, %v", got, err)
	}
}

func TestElectionIsReadFromTheLog(t *testing.T) {
	trivet := strings.Join([]string{
		`{"time":"2026-01-02T03:04:05.000000001Z","level":"INFO","msg":"entering leader state","component":"raft"}`,
		`{"time":"2026-01-02T03:04:06Z","level":"INFO","msg":"entering follower state"}`,
		`{"time":"2026-01-02T03:04:07.5Z","level":"INFO","msg":"entering leader state","component":"raft"}`,
		`entering leader state, but not a record`,
	}, "\n")
	want := time.Date(2026, 1, 2, 3, 4, 7, 500e6, time.UTC)
	if at, ok := (trivetDialect{}).elected(trivet); !ok || !at.Equal(want) {
		t.Errorf("got %v %v, want %v", at, ok, want)
	}
	etcd := `{"level":"info","ts":"2026-01-02T03:04:07.500Z","caller":"raft/node.go:327","msg":"x became leader at term 3"}`
	if at, ok := (etcdDialect{}).elected(etcd); !ok || !at.Equal(want) {
		t.Errorf("got %v %v, want %v", at, ok, want)
	}
	if _, ok := (etcdDialect{}).elected("quiet\n"); ok {
		t.Error("an election out of nothing")
	}
}
