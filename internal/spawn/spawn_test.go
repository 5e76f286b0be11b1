package spawn

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProcessesEndWithTheirSpawner(t *testing.T) {
	s := New()
	cmd := exec.Command("sleep", "300")
	if err := s.Start(cmd, nil, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if pg, err := syscall.Getpgid(cmd.Process.Pid); err != nil || pg != cmd.Process.Pid {
		t.Errorf("its process group is %d (%v), not its own %d", pg, err, cmd.Process.Pid)
	}
	s.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("the process did not end with its spawner")
		_ = cmd.Process.Kill()
		<-ended
	}
	if st, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || st.Signal() != syscall.SIGKILL {
		t.Errorf("it ended with %v, not by the signal", cmd.ProcessState)
	}
}

func TestErrorsOfTheStartAreReturned(t *testing.T) {
	s := New()
	defer s.Close()
	if err := s.Start(exec.Command("/nonexistent"), nil, syscall.SIGKILL); err == nil {
		t.Error("a program that is not there was started")
	}
}

func TestAProcessIsBornInItsNamespace(t *testing.T) {
	netnstest.Require(t)
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	s := New()
	defer s.Close()
	where := func(ns *netns.Handle) string {
		cmd := exec.Command("readlink", "/proc/self/ns/net")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd.Stdout = w
		err = s.Start(cmd, ns, syscall.SIGKILL)
		w.Close()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 64)
		n, err := r.Read(line)
		if err != nil {
			t.Fatal(err)
		}
		return string(line[:n])
	}
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	there := where(ns)
	if there == home+"\n" {
		t.Error("it was born in this process's namespace")
	}
	if back := where(nil); back != home+"\n" {
		t.Errorf("the next one was born in %s, want %s", back, home)
	}
}
