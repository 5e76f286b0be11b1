package systest

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
)

// commandTimeout bounds a command that asks and answers.
const commandTimeout = 30 * time.Second

// Result is how a command ended.
type Result struct {
	Code int
	// Out and Err are standard output and standard error.
	Out, Err string
	Took     time.Duration
}

// Trivet runs a command and waits for its end. env is added to the
// environment.
func Trivet(t testing.TB, env []string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	var out bytes.Buffer
	began := time.Now()
	p := Launch(t, Command{Name: "trivet", Path: Binary(t), Args: args, Env: env, Stdout: &out})
	code, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("trivet %s: %v", strings.Join(args, " "), err)
	}
	return Result{Code: code, Out: out.String(), Err: p.ErrOut(), Took: time.Since(began)}
}

// Trivet runs a command of one of the cluster's contexts, or of the current
// one if none is named.
func (c *Cluster) Trivet(t testing.TB, context string, args ...string) Result {
	t.Helper()
	return Trivet(t, c.Env(context), args...)
}

// Env is the environment of a command of one of the cluster's contexts.
func (c *Cluster) Env(context string) []string {
	env := []string{"TRIVET_CONFIG=" + c.Dev.ContextFile}
	if context != "" {
		env = append(env, "TRIVET_CONTEXT="+context)
	}
	return env
}

// WantFailure checks that a command failed as a user should see it: with an
// exit code, one line that says what is wrong and one that says what to do.
// Both lines have to contain the texts given for them. A daemon may have logged
// before that.
func (r Result) WantFailure(t testing.TB, code int, cause, hint string) {
	t.Helper()
	if r.Code != code {
		t.Errorf("exit code %d, want %d", r.Code, code)
	}
	lines := slices.DeleteFunc(strings.Split(strings.TrimRight(r.Err, "\n"), "\n"), isLog)
	ok := len(lines) == 2 && strings.HasPrefix(lines[0], "Error: ") && strings.Contains(lines[0], cause) &&
		strings.HasPrefix(lines[1], "Hint:  ") && strings.Contains(lines[1], hint)
	if !ok {
		t.Errorf("standard error is\n%s\nwant a line \"Error: …%s…\" and a line \"Hint:  …%s…\"", r.Err, cause, hint)
	}
	if r.Out != "" {
		t.Errorf("standard output is %q, want nothing", r.Out)
	}
}

// isLog tells a line of a log, in either format, from words to the user.
func isLog(line string) bool {
	return strings.HasPrefix(line, `{"time":`) || strings.HasPrefix(line, "time=")
}

// JSON reads what a command printed with -o json.
func JSON[T any](t testing.TB, r Result) T {
	t.Helper()
	var v T
	if r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Err)
	}
	if err := json.Unmarshal([]byte(r.Out), &v); err != nil {
		t.Fatalf("read the command's output: %v\n%s", err, r.Out)
	}
	return v
}
