package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"trivet/cmd/trivet/devenv"
)

const stopIntercept = 15 * time.Second

// intercept is a `trivet intercept create` in the foreground, as a developer
// would run it.
type intercept struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error

	mu     sync.Mutex
	events []string
	wake   chan struct{}
	stderr strings.Builder
}

// event is what this package reads of a line of `-o jsonl`.
type event struct {
	Event string `json:"event"`
}

// startIntercept runs the command, attached to the server at address first.
func startIntercept(env *devenv.Env, exe, address, local string) (*intercept, error) {
	_, port, err := net.SplitHostPort(local)
	if err != nil {
		return nil, err
	}
	i := &intercept{done: make(chan struct{}), wake: make(chan struct{})}
	i.cmd = exec.Command(exe, "intercept", "create", interceptName, "--workload", devenv.SampleName,
		"--namespace", devenv.SampleNamespace, "--port", port+":"+devenv.SamplePort, "--attach", address, "-o", "jsonl")
	i.cmd.Env = append(os.Environ(), "TRIVET_CONFIG="+env.ContextFile)
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	i.cmd.Stderr = &i.stderr
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := i.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the intercept: %w", err)
	}
	go func() {
		defer close(i.done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil {
				i.mu.Lock()
				i.events = append(i.events, e.Event)
				close(i.wake)
				i.wake = make(chan struct{})
				i.mu.Unlock()
			}
		}
		i.err = i.cmd.Wait()
	}()
	return i, nil
}

// await waits until the command has said an event, counting from the given
// number of events on.
func (i *intercept) await(ctx context.Context, name string, from int) error {
	for {
		i.mu.Lock()
		wake := i.wake
		for _, e := range i.events[min(from, len(i.events)):] {
			if e == name {
				i.mu.Unlock()
				return nil
			}
		}
		i.mu.Unlock()
		select {
		case <-wake:
		case <-i.done:
			return fmt.Errorf("the intercept ended before it said %q: %w: %s", name, i.err, i.stderr.String())
		case <-ctx.Done():
			return fmt.Errorf("the intercept did not say %q: %w", name, ctx.Err())
		}
	}
}

// interrupt is the developer's Ctrl-C.
func (i *intercept) interrupt() error {
	if err := i.cmd.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-i.done:
	case <-time.After(stopIntercept):
		_ = i.cmd.Process.Kill()
		<-i.done
		return fmt.Errorf("the intercept did not end within %s of Ctrl-C", stopIntercept)
	}
	var exit *exec.ExitError
	if errors.As(i.err, &exit) && exit.ExitCode() == 130 {
		return nil
	}
	return i.err
}
