package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"trivet/client"
	"trivet/client/clienttest"
)

// asMain makes this test binary behave as trivet: for what needs a process of
// its own.
const asMain = "TRIVET_TEST_AS_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMain) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; look at the difference before committing it")

// now is what the clock of commands under test shows.
var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// rig runs command lines against a manager.
type rig struct {
	t      *testing.T
	f      *clienttest.Manager
	config string
	env    map[string]string
	// now is what the clock of commands shows.
	now time.Time
}

// newRig starts a manager of so many servers and writes a context file: "shop"
// for a client, which is current, and "shop-operator".
func newRig(t *testing.T, servers int) *rig {
	t.Helper()
	r := &rig{t: t, f: clienttest.New(t, servers), config: filepath.Join(t.TempDir(), "context.yaml"), now: now}
	file := client.NewFile(r.config)
	file.Put(client.Context{Name: "shop", Servers: r.f.Addresses(), Bundle: r.f.Bundle, Namespace: "shop"})
	file.Put(client.Context{Name: "shop-operator", Servers: r.f.Addresses(), Bundle: r.f.Operator, Namespace: "shop"})
	if err := file.Save(); err != nil {
		t.Fatal(err)
	}
	r.env = map[string]string{"TRIVET_CONFIG": r.config, "HOME": t.TempDir(), "USER": "alice"}
	return r
}

func (r *rig) app(out, errOut io.Writer) *App {
	a := NewApp(strings.NewReader(""), out, errOut, func(name string) (string, bool) {
		v, ok := r.env[name]
		return v, ok
	})
	a.Now = func() time.Time { return r.now }
	return a
}

// run runs one command line to its end.
func (r *rig) run(args ...string) (out, errOut string, code int) {
	r.t.Helper()
	var o, e syncBuffer
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	code = r.app(&o, &e).Run(ctx, args, extraCommands...)
	return o.String(), e.String(), code
}

// steady replaces what differs from run to run.
func (r *rig) steady(text string) string {
	for i, addr := range r.f.Addresses() {
		// As long as what it stands for, so that tables stay aligned.
		text = strings.ReplaceAll(text, addr, fmt.Sprintf("10.20.30.%d:7400", i+1))
	}
	text = strings.ReplaceAll(text, r.config, "/home/alice/context.yaml")
	text = strings.ReplaceAll(text, r.f.Bundle, "/home/alice/bundle")
	return strings.ReplaceAll(text, r.f.Operator, "/home/alice/operator")
}

// golden runs command lines and compares what they print with a file in
// testdata.
func (r *rig) golden(name string, lines ...string) {
	r.t.Helper()
	var b strings.Builder
	for _, line := range lines {
		out, errOut, code := r.run(strings.Fields(line)...)
		fmt.Fprintf(&b, "$ trivet %s\n%s", line, r.steady(out))
		if errOut != "" {
			fmt.Fprintf(&b, "--- stderr\n%s", r.steady(errOut))
		}
		fmt.Fprintf(&b, "--- exit %d\n\n", code)
	}
	path := filepath.Join("testdata", name+".txt")
	if *rewrite {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			r.t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	if d := cmp.Diff(string(want), b.String()); d != "" {
		r.t.Errorf("%s (-want +got):\n%s", path, d)
	}
}

// running is a command that stays in the foreground.
type running struct {
	t      *testing.T
	cancel context.CancelCauseFunc
	out    *lineBuffer
	errOut *syncBuffer
	code   chan int
}

func (r *rig) start(args ...string) *running {
	r.t.Helper()
	ctx, cancel := context.WithCancelCause(r.t.Context())
	run := &running{t: r.t, cancel: cancel, out: newLineBuffer(), errOut: &syncBuffer{}, code: make(chan int, 1)}
	app := r.app(nil, run.errOut)
	app.Out = run.out
	go func() { run.code <- app.Run(ctx, args, extraCommands...) }()
	return run
}

// interrupt is a Ctrl-C.
func (r *running) interrupt() { r.cancel(errInterrupted) }

// await returns the next event of that name, with -o jsonl.
func (r *running) await(name string) map[string]any {
	r.t.Helper()
	for {
		line, ok := r.out.next(10 * time.Second)
		if !ok {
			r.t.Fatalf("no event %q came; stderr: %s", name, r.errOut)
		}
		var event map[string]any
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			r.t.Fatalf("not JSON: %s", line)
		}
		if event["event"] == name {
			return event
		}
	}
}

func (r *running) wait() int {
	r.t.Helper()
	select {
	case code := <-r.code:
		return code
	case <-time.After(20 * time.Second):
		r.t.Fatal("the command does not end")
		return -1
	}
}

// syncBuffer is a buffer that a command and its child process may share.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// lineBuffer is a writer that hands out lines.
type lineBuffer struct {
	mu    sync.Mutex
	part  []byte
	lines chan string
}

func newLineBuffer() *lineBuffer { return &lineBuffer{lines: make(chan string, 4096)} }

func (l *lineBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, b...)
	for {
		i := bytes.IndexByte(l.part, '\n')
		if i < 0 {
			return len(b), nil
		}
		l.lines <- string(l.part[:i])
		l.part = l.part[i+1:]
	}
}

func (l *lineBuffer) next(patience time.Duration) (string, bool) {
	select {
	case line := <-l.lines:
		return line, true
	case <-time.After(patience):
		return "", false
	}
}
