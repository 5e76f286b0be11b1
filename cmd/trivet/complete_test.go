package main

import (
	"strings"
	"testing"
	"time"
)

func TestCompletion(t *testing.T) {
	r := newRig(t, 2)
	furnish(r)
	for line, want := range map[string]string{
		"intercept get a":                         "api",
		"intercept get z":                         "",
		"intercept create x --workload w":         "web",
		"context use shop":                        "shop shop-operator",
		"operator raft transfer-leadership --to ": "s1 s2",
		"status --output j":                       "json jsonl",
		"operator profile g":                      "goroutine",
	} {
		out, _, code := r.run(append([]string{"__complete"}, strings.Split(line, " ")...)...)
		lines := strings.Fields(out)
		if code != 0 || len(lines) == 0 || strings.Join(lines[:len(lines)-1], " ") != want {
			t.Errorf("%q: exit %d, %q, want %q", line, code, lines, want)
		}
	}
}

// TestCompletionOfADeadClusterIsQuick: the shell waits for it.
func TestCompletionOfADeadClusterIsQuick(t *testing.T) {
	r := newRig(t, 1)
	r.f.Servers[0].Hang()
	start := time.Now()
	out, _, _ := r.run("__complete", "intercept", "get", "")
	if got := strings.Fields(out); len(got) != 1 {
		t.Errorf("completed %q", got)
	}
	if took := time.Since(start); took > 10*completionTime {
		t.Errorf("took %s", took)
	}
}
