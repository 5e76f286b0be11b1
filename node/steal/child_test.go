package steal

import (
	"bufio"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// childEnv makes the test binary a traffic process: "serve" accepts, "hang"
// does not.
const childEnv = "TRIVET_STEAL_CHILD"

// childMain adopts what the parent handed down, arms port 8080 and beats until
// it is killed. It says "ready" when it has.
func childMain(mode string) {
	die := func(err error) {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	list := make([]*os.File, FileCount)
	for i := range list {
		list[i] = os.NewFile(uintptr(3+i), fmt.Sprintf("inherited %d", i))
	}
	files, err := FilesFrom(list)
	if err != nil {
		die(err)
	}
	w, err := Adopt(files)
	if err != nil {
		die(err)
	}
	for _, k := range AnyAddress(8080) {
		if err := w.Arm(k); err != nil {
			die(err)
		}
	}
	if err := w.Beat(); err != nil {
		die(err)
	}
	if mode == "serve" {
		go func() {
			for {
				conn, err := w.Listener().Accept()
				if err != nil {
					die(err)
				}
				go reply(conn, fmt.Sprintf("child %d at %v", os.Getpid(), OriginalDst(conn)))
			}
		}()
	}
	fmt.Println("ready")
	for range time.Tick(50 * time.Millisecond) {
		if err := w.Beat(); err != nil {
			die(err)
		}
	}
}

// child is a traffic process.
type child struct {
	cmd  *exec.Cmd
	done bool
}

// startChild starts a traffic process and waits until it serves.
func (r *rig) startChild(t *testing.T, mode string) *child {
	t.Helper()
	files, err := r.att.Files()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{cmd: exec.Command("/proc/self/exe")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+mode)
	c.cmd.Stderr = os.Stderr
	c.cmd.ExtraFiles = files.List()
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	err = c.cmd.Start()
	files.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("child says %q (%v), want ready", line, err)
	}
	return c
}

// kill kills the process with SIGKILL and reaps it.
func (c *child) kill() {
	if !c.done {
		c.done = true
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

func (c *child) answers(dst netip.AddrPort) string {
	return fmt.Sprintf("child %d at %v", c.cmd.Process.Pid, dst)
}

func TestAnotherProcessServes(t *testing.T) {
	r := newBareRig(t, Options{})
	r.app(t, "tcp", ":8080", "app")
	c := r.startChild(t, "serve")
	for _, dst := range []netip.AddrPort{r.v4(8080), r.v6(8080)} {
		if got := r.whoAnswers(t, dst); got != c.answers(dst) {
			t.Errorf("%v: %s answers", dst, got)
		}
	}
}

func TestKilledProcessLeavesTheApp(t *testing.T) {
	r := newBareRig(t, Options{})
	r.app(t, "tcp", ":8080", "app")
	c := r.startChild(t, "serve")
	if got := r.whoAnswers(t, r.v4(8080)); got != c.answers(r.v4(8080)) {
		t.Fatalf("%s answers", got)
	}
	c.kill()
	died := time.Now()
	r.wantAppSince(t, died, r.v4(8080))
	r.wantAppSince(t, died, r.v6(8080))

	// The next one finds the keys and takes over.
	keys, err := r.att.ArmedKeys()
	if err != nil || len(keys) != 2 {
		t.Errorf("armed %v (%v), want 2 keys", keys, err)
	}
	next := r.startChild(t, "serve")
	if got := r.whoAnswers(t, r.v4(8080)); got != next.answers(r.v4(8080)) {
		t.Errorf("after the restart %s answers", got)
	}
}

func TestStoppedProcessLeavesTheApp(t *testing.T) {
	r := newBareRig(t, Options{})
	r.app(t, "tcp", ":8080", "app")
	c := r.startChild(t, "serve")
	if err := c.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stopped := time.Now()
	r.wantAppSince(t, stopped, r.v4(8080))
	r.wantAppSince(t, stopped, r.v6(8080))
}

// TestWaitingConnectionSurvivesTheProcess has a connection in the accept queue
// of a process that is killed before it accepts.
func TestWaitingConnectionSurvivesTheProcess(t *testing.T) {
	r := newBareRig(t, Options{})
	r.app(t, "tcp", ":8080", "app")
	first := r.startChild(t, "hang")
	v4, v6 := r.visit(t, r.v4(8080)), r.visit(t, r.v6(8080))
	if s, err := r.att.Stats(); err != nil || s.Stolen < 2 {
		t.Fatalf("%d stolen (%v), want 2", s.Stolen, err)
	}
	first.kill()
	second := r.startChild(t, "serve")
	if got := ask(t, v4); got != second.answers(r.v4(8080)) {
		t.Errorf("v4: %s answers", got)
	}
	if got := ask(t, v6); got != second.answers(r.v6(8080)) {
		t.Errorf("v6: %s answers", got)
	}
}

// TestHandingDescriptorsOnDoesNotBlockTheListener guards the open socket's
// flag: a listener that became blocking could not be closed or stopped.
func TestHandingDescriptorsOnDoesNotBlockTheListener(t *testing.T) {
	r := newRig(t)
	r.startChild(t, "hang")
	if f, err := listenerFile(r.att.listener); err != nil {
		t.Fatal(err)
	} else {
		defer f.Close()
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		if err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("flags %#x (%v), want non-blocking", flags, err)
		}
	}
}

// TestTwoProcessesOverlap is an upgrade: the new process serves while the old
// one still has its connections.
func TestTwoProcessesOverlap(t *testing.T) {
	r := newRig(t)
	r.app(t, "tcp", ":8080", "app")
	answer(t, r.worker.Listener(), "old")
	r.arm(t, 8080)
	old := r.visit(t, r.v4(8080))
	if got := ask(t, old); got != "old" {
		t.Fatalf("%s answers", got)
	}
	next := r.startChild(t, "serve")
	if err := r.worker.Listener().Close(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if got := r.whoAnswers(t, r.v4(8080)); got != next.answers(r.v4(8080)) {
			t.Fatalf("new connection: %s answers", got)
		}
	}
	if got := ask(t, old); got != "old" {
		t.Errorf("old connection: %s answers", got)
	}
}
