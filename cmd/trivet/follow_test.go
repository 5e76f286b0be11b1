package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/client/clienttest"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	"trivet/tunnel"
)

// localServer is a process beside the command: it answers each connection with
// "hello" and closes it.
func localServer(t *testing.T) (port string) {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("hello"))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = lis.Close(); <-done })
	return strconv.Itoa(lis.Addr().(*net.TCPAddr).Port)
}

// visit sends one connection through the manager and returns what comes back.
func visit(t *testing.T, f *clienttest.Manager, server, port string) string {
	t.Helper()
	id, err := tunnel.NewConnID(tunnel.TCP, netip.MustParseAddrPort("10.0.0.5:40000"), netip.MustParseAddrPort("127.0.0.1:"+port))
	if err != nil {
		t.Fatal(err)
	}
	f.Dial(server, id.Bytes())
	var tun *clienttest.Tunnel
	select {
	case tun = <-f.Tunnels:
	case <-time.After(10 * time.Second):
		t.Fatal("no tunnel was opened")
	}
	var got bytes.Buffer
	for {
		m, err := tun.Stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		frame, err := tunnel.ParseFrame(m.GetPayload())
		if err != nil {
			t.Fatal(err)
		}
		switch frame.Code {
		case tunnel.CodeNormal:
			got.Write(frame.Body)
		case tunnel.CodeDialReject:
			tun.End <- nil
			return "rejected"
		}
	}
	tun.End <- nil
	return got.String()
}

func TestCreateFollowsAndCleansUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	port := localServer(t)
	run := r.start("intercept", "create", "api", "--workload", "web", "--port", port+":http", "--attach", r.f.Servers[1].Address, "-o", "jsonl")
	if e := run.await("created"); e["id"] != "session-1:api" || e["session"] != "session-1" {
		t.Errorf("created = %v", e)
	}
	run.await("active")
	// It began with the server that it was told to begin with.
	if calls := r.f.Calls("CreateIntercept"); len(calls) != 1 || calls[0].Server != "s2" {
		t.Errorf("calls = %+v", calls)
	}
	if got := visit(t, r.f, "s2", port); got != "hello" {
		t.Errorf("the visitor got %q", got)
	}
	if e := run.await("connection"); e["from"] != "10.0.0.5:40000" || e["connection"] != 1.0 {
		t.Errorf("connection = %v", e)
	}
	if e := run.await("closed"); e["bytesOut"] != 5.0 || e["bytesIn"] != 0.0 {
		t.Errorf("closed = %v", e)
	}

	r.f.Server("s2").Kill()
	run.await("reconnecting")
	if e := run.await("connected"); e["server"] != "s1" {
		t.Errorf("connected = %v", e)
	}
	if got := visit(t, r.f, "s1", port); got != "hello" {
		t.Errorf("after the failover the visitor got %q", got)
	}

	run.interrupt()
	run.await("removed")
	if code := run.wait(); code != 130 {
		t.Errorf("exit %d, want 130; stderr %s", code, run.errOut)
	}
	if run.errOut.String() != "" {
		t.Errorf("stderr = %q", run.errOut)
	}
	r.f.Change(func() {
		if len(r.f.Sessions)+len(r.f.Intercepts) != 0 {
			t.Errorf("left behind: %v, %v", r.f.Sessions, r.f.Intercepts)
		}
	})
}

func TestCreateInWords(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(lis.Addr().(*net.TCPAddr).Port)
	_ = lis.Close()
	run := r.start("intercept", "create", "api", "--workload", "web", "--port", port)
	line := func(prefix string) {
		t.Helper()
		got, ok := run.out.next(10 * time.Second)
		if !ok || !strings.HasPrefix(got, prefix) {
			t.Fatalf("line %q, want %q…; stderr %s", got, prefix, run.errOut)
		}
	}
	// Nobody listens: said at once, and again to each visitor.
	line("warning: nothing listens on 127.0.0.1:" + port)
	line("  start the process that is to get the traffic, on port " + port)
	line("intercept api: web (shop) port 80 -> 127.0.0.1:" + port)
	seen := map[string]bool{}
	for range 2 { // in either order
		got, _ := run.out.next(10 * time.Second)
		seen[strings.Fields(got)[0]] = true
	}
	if !seen["connected"] || !seen["intercept"] {
		t.Errorf("lines = %v, want one about the connection and one about the state", seen)
	}
	if got := visit(t, r.f, "s1", port); got != "rejected" {
		t.Errorf("the visitor got %q, want a rejection", got)
	}
	line("refused a connection from 10.0.0.5:40000: nothing listens on 127.0.0.1:" + port)
	line("  start the process")
	run.interrupt()
	line("intercept api was removed")
	if code := run.wait(); code != 130 {
		t.Errorf("exit %d", code)
	}
}

func TestCreateEndsWithItsIntercept(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	port := localServer(t)
	run := r.start("intercept", "create", "api", "--workload", "web", "--port", port, "-o", "jsonl")
	run.await("active")
	if _, errOut, code := r.run("intercept", "delete", "api"); code != 0 {
		t.Fatalf("delete: exit %d, %s", code, errOut)
	}
	run.await("removed")
	if code := run.wait(); code != 3 || !strings.Contains(run.errOut.String(), "INTERCEPT_REMOVED") {
		t.Errorf("exit %d, %s", code, run.errOut)
	}

	run = r.start("intercept", "create", "api", "--workload", "web", "--port", port, "-o", "jsonl", "--for", "1s")
	id := run.await("created")["id"].(string)
	run.await("active")
	r.f.Change(func() { delete(r.f.Intercepts, id) }) // the manager's part
	run.await("removed")
	if code := run.wait(); code != 0 {
		t.Errorf("the time is over: exit %d, %s", code, run.errOut)
	}
}

func TestCreateThatCannotBe(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	port := localServer(t)
	args := []string{"intercept", "create", "api", "--workload", "web", "--port", port}
	r.f.Answer("CreateIntercept", errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "port 80 is bob's").WithHint("use --force"))
	out, errOut, code := r.run(args...)
	if code != 5 || out != "" || errOut != "Error: create intercept \"api\": port 80 is bob's\nHint:  use --force\n" {
		t.Errorf("conflict: exit %d, %q", code, errOut)
	}
	r.f.Answer("EnsureAgent", errs.New(codes.NotFound, "WORKLOAD_NOT_FOUND", "no workload web"))
	if _, errOut, code = r.run(args...); code != 3 {
		t.Errorf("unknown workload: exit %d, %q", code, errOut)
	}
	r.f.Change(func() { r.f.Disposition = manager.InterceptDispositionType_NO_AGENT })
	if _, errOut, code = r.run(append(args, "--timeout", "1s")...); code != 7 || !strings.Contains(errOut, "no agent serves the workload") {
		t.Errorf("no agent: exit %d, %q", code, errOut)
	}
	r.f.Change(func() { r.f.Disposition = manager.InterceptDispositionType_AGENT_ERROR })
	if _, errOut, code = r.run(args...); code != 5 {
		t.Errorf("agent's refusal: exit %d, %q", code, errOut)
	}
	r.f.Change(func() {
		if len(r.f.Sessions)+len(r.f.Intercepts) != 0 {
			t.Errorf("left behind: %v, %v", r.f.Sessions, r.f.Intercepts)
		}
	})
}

func TestCommandRunsBesideTheIntercept(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.f.Change(func() { r.f.Environment = map[string]string{"APP": "web", "PATH": "/nowhere"} })
	out, errOut, code := r.run("intercept", "create", "api", "--workload", "web", "--port", localServer(t), "-o", "jsonl", "--",
		"sh", "-c", "echo $APP $TRIVET_INTERCEPT_ID $PATH; exit 7")
	if code != 7 || out != "web session-1:api "+os.Getenv("PATH")+"\n" {
		t.Errorf("exit %d, stdout %q, stderr %s", code, out, errOut)
	}
	for _, event := range []string{`"event":"started"`, `"event":"exited"`, `"exitCode":7`, `"event":"removed"`} {
		if !strings.Contains(errOut, event) {
			t.Errorf("stderr has no %s: %s", event, errOut)
		}
	}
	_, errOut, code = r.run("intercept", "create", "api", "--workload", "web", "--port", "9", "--", "no-such-command")
	if code != 3 || !strings.Contains(errOut, "no-such-command") {
		t.Errorf("unknown command: exit %d, %s", code, errOut)
	}
	// The intercept goes: so does the command.
	run := r.start("intercept", "create", "api", "--workload", "web", "--port", "9", "--", "sh", "-c", "echo up; exec sleep 60")
	if line, _ := run.out.next(10 * time.Second); line != "up" {
		t.Fatalf("the command did not start: %s", run.errOut)
	}
	r.f.Forget()
	r.f.Answer("CreateIntercept", errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "bob has it"))
	if code := run.wait(); code != 5 {
		t.Errorf("exit %d, %s", code, run.errOut)
	}
}

// process runs this test binary as trivet.
func (r *rig) process(args ...string) *exec.Cmd {
	exe, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), asMain+"=1", "TRIVET_CONFIG="+r.config)
	return cmd
}

func TestSignalsReachTheCommand(t *testing.T) {
	t.Parallel()
	for sig, want := range map[syscall.Signal]int{syscall.SIGUSR1: 9, syscall.SIGINT: 11, syscall.SIGTERM: 12} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			script := `trap "exit 9" USR1; trap "exit 11" INT; trap "exit 12" TERM; echo up; while :; do sleep 0.05; done`
			cmd := r.process("intercept", "create", "api", "--workload", "web", "--port", "9", "--", "sh", "-c", script)
			var errOut bytes.Buffer
			cmd.Stderr = &errOut
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, _ := bufio.NewReader(out).ReadString('\n'); line != "up\n" {
				t.Errorf("the command said %q; %s", line, errOut.String())
			}
			if err := cmd.Process.Signal(sig); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // its code is looked at
			if code := cmd.ProcessState.ExitCode(); code != want {
				t.Errorf("exit %d, want %d; %s", code, want, errOut.String())
			}
			r.f.Change(func() {
				if len(r.f.Sessions) != 0 {
					t.Error("a session was left behind")
				}
			})
		})
	}
}

func TestInterruptedProcessCleansUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	cmd := r.process("intercept", "create", "api", "--workload", "web", "--port", localServer(t), "-o", "jsonl")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), `"event":"active"`) {
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Error(err)
	}
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	_ = cmd.Wait() // its code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(last, `"event":"removed"`) {
		t.Errorf("exit %d, last line %s", code, last)
	}
}

func TestDetachedInterceptGoesOnAndEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	port := localServer(t)
	out, err := r.process("intercept", "create", "api", "--workload", "web", "--port", port, "--detach", "-o", "json").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var v detachedView
	if err := json.Unmarshal(out, &v); err != nil || v.ID != "session-1:api" || v.Pid == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	if got := visit(t, r.f, "s1", port); got != "hello" {
		t.Errorf("the visitor got %q", got)
	}
	if _, errOut, code := r.run("intercept", "delete", "api"); code != 0 {
		t.Errorf("delete: exit %d, %s", code, errOut)
	}
	// The background process sees it and leaves.
	deadline := time.Now().Add(10 * time.Second)
	for left := 1; left > 0 && time.Now().Before(deadline); {
		r.f.Change(func() { left = len(r.f.Sessions) })
		time.Sleep(10 * time.Millisecond) // another process: it gives no event
	}
	r.f.Change(func() {
		if len(r.f.Sessions) != 0 {
			t.Error("the background process is still there")
			_ = syscall.Kill(v.Pid, syscall.SIGKILL)
		}
	})

	r.f.Answer("CreateIntercept", errs.New(codes.FailedPrecondition, "INTERCEPT_CONFLICT", "port 80 is bob's").WithHint("use --force"))
	cmd := r.process("intercept", "create", "api", "--workload", "web", "--port", port, "--detach")
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	_ = cmd.Run() // its code is looked at
	if code := cmd.ProcessState.ExitCode(); code != 5 || !strings.Contains(errOut.String(), "Hint:  use --force") {
		t.Errorf("exit %d, %s", code, errOut.String())
	}
}
