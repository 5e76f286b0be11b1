package compose

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
	"trivet/test/systest"
)

const (
	engineStart = time.Minute
	engineAsk   = 5 * time.Second
	// commandTime bounds one command of docker or compose.
	commandTime = 3 * time.Minute
)

// composeVariable names the compose command to use.
const composeVariable = "TRIVET_COMPOSE"

// docker is a Docker engine.
type docker struct {
	t testing.TB
	// env is added to the environment of every command.
	env []string
	// ns is where the engine publishes ports; nil: on this machine.
	ns *netnstest.Namespace
}

// startDocker finds an engine, or starts one that ends with the test.
func startDocker(t testing.TB) *docker {
	t.Helper()
	e := &docker{t: t}
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("SKIP reason: docker is not installed (Debian package docker.io)")
	}
	if _, err := e.try(engineAsk, "docker", "version"); err == nil {
		return e
	}
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		t.Skip("SKIP reason: no Docker engine answers, and dockerd is not installed (Debian package docker.io)")
	}
	if os.Getuid() != 0 {
		t.Skip("SKIP reason: no Docker engine answers, and only root can start one")
	}
	e.start(dockerd)
	return e
}

func (e *docker) start(dockerd string) {
	e.t.Helper()
	e.ns = netnstest.New(e.t)
	// Not below the test's own folder: the path of a socket has to be short.
	dir, err := os.MkdirTemp("", "trivet-docker-")
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			e.t.Error(err)
		}
	})
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	e.env = append(e.env, "DOCKER_HOST="+socket)
	p := systest.Launch(e.t, systest.Command{
		Name: "dockerd", Path: dockerd, Net: e.ns,
		Args: []string{
			"--host", socket, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
			"--pidfile", filepath.Join(dir, "pid"),
		},
	})
	err = systest.Poll(systest.Deadline(e.t, engineStart), func() error {
		if !p.Running() {
			return nil // it will not answer any more
		}
		_, err := e.try(engineAsk, "docker", "version")
		return err
	})
	if err != nil || !p.Running() {
		e.t.Skipf("SKIP reason: a Docker engine cannot be started here: %s", lastLine(p.ErrOut()))
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func tail(text string) string {
	const most = 4000
	return text[max(0, len(text)-most):]
}

// dial connects to a port that the engine published.
func (e *docker) dial(ctx context.Context, address string) (net.Conn, error) {
	if e.ns == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	return netns.Dial(ctx, e.ns.NS, "tcp", address, nil)
}

// listen listens beside the ports that the engine publishes.
func (e *docker) listen() net.Listener {
	e.t.Helper()
	const address = "127.0.0.1:0"
	var ln net.Listener
	var err error
	if e.ns == nil {
		ln, err = net.Listen("tcp", address)
	} else {
		ln, err = netns.Listen(e.t.Context(), e.ns.NS, "tcp", address)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return ln
}

// freePort is a port that nobody uses right now.
func (e *docker) freePort() string {
	e.t.Helper()
	ln := e.listen()
	defer ln.Close()
	return portOf(ln)
}

func portOf(ln net.Listener) string {
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return port
}

// try runs a command at the top of the repository.
func (e *docker) try(d time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d) // also after the test's end
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), e.env...)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(errOut.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// run is try for a command that has to work.
func (e *docker) run(name string, args ...string) string {
	e.t.Helper()
	out, err := e.try(commandTime, name, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// compose is the command of whichever compose is there.
func (e *docker) compose() []string {
	e.t.Helper()
	if words := strings.Fields(os.Getenv(composeVariable)); len(words) > 0 {
		return words
	}
	if _, err := exec.LookPath("docker-compose"); err == nil {
		return []string{"docker-compose"}
	}
	if _, err := e.try(engineAsk, "docker", "compose", "version"); err != nil {
		e.t.Skip("SKIP reason: neither docker-compose (Debian package docker-compose) nor docker compose is installed")
	}
	return []string{"docker", "compose"}
}
