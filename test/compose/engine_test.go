package compose

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trivet/test/systest"
)

const (
	engineStart = time.Minute
	engineStop  = 30 * time.Second
	// composeTime bounds one docker or docker-compose command.
	composeTime = 3 * time.Minute
)

// docker is a Docker engine.
type docker struct {
	t testing.TB
	// env is added to the environment of every command.
	env []string
}

// startEngine finds an engine, or starts one that ends with the test.
func startEngine(t testing.TB) *docker {
	t.Helper()
	e := &docker{t: t}
	if _, err := e.try(5*time.Second, "docker", "version"); err == nil {
		return e
	}
	dockerd, err := exec.LookPath("dockerd")
	if err != nil {
		t.Skip("no Docker engine answers, and there is no dockerd to start")
	}
	if os.Getuid() != 0 {
		t.Skip("no Docker engine answers, and only root can start one")
	}
	dir, err := os.MkdirTemp("", "trivet-docker-")
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	cmd := exec.Command(dockerd, "-H", socket, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(engineStop):
			_ = cmd.Process.Kill()
			<-ended
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	e.env = []string{"DOCKER_HOST=" + socket}
	err = systest.Poll(systest.Deadline(t, engineStart), func() error {
		select {
		case err := <-ended:
			ended <- err
			return nil // it will not get better
		default:
		}
		_, err := e.try(5*time.Second, "docker", "version")
		return err
	})
	if err == nil {
		_, err = e.try(5*time.Second, "docker", "version")
	}
	if err != nil {
		out, _ := os.ReadFile(log.Name())
		t.Skipf("a Docker engine cannot be started here: %v\n%s", err, tail(out))
	}
	return e
}

func tail(b []byte) []byte {
	const most = 2000
	return b[max(0, len(b)-most):]
}

// try runs a command at the top of the repository.
func (e *docker) try(d time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), e.env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, tail(errOut.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// run is try for a command that has to work.
func (e *docker) run(name string, args ...string) string {
	e.t.Helper()
	out, err := e.try(composeTime, name, args...)
	if err != nil {
		e.t.Fatal(err)
	}
	return out
}

// composeCommand is docker-compose 1.29, or the plugin of Docker.
func (e *docker) composeCommand() []string {
	e.t.Helper()
	if _, err := exec.LookPath("docker-compose"); err == nil {
		return []string{"docker-compose"}
	}
	if _, err := e.try(10*time.Second, "docker", "compose", "version"); err != nil {
		e.t.Skip("neither docker-compose nor docker compose is there")
	}
	return []string{"docker", "compose"}
}
