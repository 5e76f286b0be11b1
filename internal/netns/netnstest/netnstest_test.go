package netnstest_test

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

func TestConnectedNamespacesTalkOverBothFamilies(t *testing.T) {
	netnstest.Require(t)
	visitor, pod := netnstest.New(t), netnstest.New(t)
	from, end := netnstest.Connect(t, visitor, pod)
	ln, err := netns.Listen(t.Context(), pod.NS, "tcp", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, addr := range []string{end.V4.String(), end.V6.String()} {
		conn, err := netns.Dial(t.Context(), visitor.NS, "tcp", net.JoinHostPort(addr, "8080"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		got, err := ln.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer got.Close()
		if got.RemoteAddr().String() != conn.LocalAddr().String() {
			t.Errorf("visitor %v arrived as %v (ends %v, %v)", conn.LocalAddr(), got.RemoteAddr(), from, end)
		}
	}
}

func TestHostReachesNamespace(t *testing.T) {
	netnstest.Require(t)
	pod := netnstest.New(t)
	_, end := netnstest.Connect(t, netnstest.Host(t), pod)
	ln, err := netns.Listen(t.Context(), pod.NS, "tcp4", ":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := net.Dial("tcp", net.JoinHostPort(end.V4.String(), "8080"))
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestNothingIsLeftBehind(t *testing.T) {
	netnstest.Require(t)
	var path, iface string
	t.Run("inner", func(t *testing.T) {
		ns := netnstest.New(t)
		end, _ := netnstest.Connect(t, netnstest.Host(t), ns)
		path, iface = ns.Path, end.Iface
	})
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("stat of the namespace's name: %v, want none", err)
	}
	if _, err := net.InterfaceByName(iface); err == nil {
		t.Errorf("interface %s is still there", iface)
	}
}

// TestNamesAreInASharedMount: otherwise the first `ip netns add` of anybody
// would put a mount over the names, and nobody could remove them.
func TestNamesAreInASharedMount(t *testing.T) {
	netnstest.Require(t)
	netnstest.New(t)
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[4] == netns.NamesDir && strings.Contains(line, " shared:") {
			return
		}
	}
	t.Errorf("no shared mount at %s:\n%s", netns.NamesDir, mounts)
}

// TestNamesOfDeadProcessesAreReaped leaves a name behind as a killed process
// would and has a new process make a namespace.
func TestNamesOfDeadProcessesAreReaped(t *testing.T) {
	netnstest.Require(t)
	if os.Getenv("TRIVET_NETNSTEST_CHILD") != "" {
		netnstest.New(t)
		return
	}
	dead := exec.Command("/proc/self/exe", "-test.run=^$")
	dead.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	live := netnstest.New(t)
	stale := filepath.Join(filepath.Dir(live.Path), "trivet-"+strconv.Itoa(dead.Process.Pid)+"-1")
	if err := os.WriteFile(stale, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(stale) })

	child := exec.Command("/proc/self/exe", "-test.run=^TestNamesOfDeadProcessesAreReaped$")
	child.Env = append(os.Environ(), "TRIVET_NETNSTEST_CHILD=1", "GORACE=atexit_sleep_ms=0")
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("stat of the dead process's name: %v, want none", err)
	}
	if _, err := os.Stat(live.Path); err != nil {
		t.Errorf("a living process's name: %v", err)
	}
}

func TestSysctlIsOfTheNamespace(t *testing.T) {
	netnstest.Require(t)
	const name = "ipv4/ip_default_ttl"
	before, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		t.Fatal(err)
	}
	ns := netnstest.New(t)
	ns.Sysctl(t, name, "33")
	var inside []byte
	err = ns.NS.Do(func() (err error) {
		inside, err = os.ReadFile("/proc/sys/net/" + name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile("/proc/sys/net/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(inside)) != "33" || !bytes.Equal(before, after) {
		t.Errorf("inside %q, outside %q before and %q after", inside, before, after)
	}
}
