package systest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"trivet/internal/netns"
	"trivet/internal/netns/netnstest"
)

// stopTimeout is how long a process may take to end by itself.
const stopTimeout = 20 * time.Second

// Command describes a process.
type Command struct {
	// Name is unique in the test; the process's log is called so.
	Name string
	Path string
	Args []string
	// Env is added to the test's own environment.
	Env []string
	// Net is where the process lives; nil means beside the test.
	Net *netnstest.Namespace
	// Stdout gets what the process says, from one goroutine, beside the log.
	Stdout io.Writer
	// Quiet keeps what the process says out of the log.
	Quiet bool
}

// Process is a running program. Its methods are safe for concurrent use.
type Process struct {
	Name string
	// LogFile is where the process's output is, for a look at the whole of it.
	LogFile string

	cmd    *exec.Cmd
	errOut buffer
	done   chan struct{}
	err    error // of Wait; set before done is closed
}

// buffer is a bytes.Buffer for two.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Launch starts a process. It ends with the test.
func Launch(t testing.TB, c Command) *Process {
	t.Helper()
	p := &Process{Name: c.Name, LogFile: filepath.Join(Dir(t), c.Name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(c.Path, c.Args...)
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, io.MultiWriter(log, &p.errOut)
	switch {
	case c.Quiet:
		p.cmd.Stdout = c.Stdout
	case c.Stdout != nil:
		p.cmd.Stdout = io.MultiWriter(log, c.Stdout)
	}
	// A grandchild that keeps the output open is not waited for.
	p.cmd.WaitDelay = time.Second
	var ns *netns.Handle
	if c.Net != nil {
		ns = c.Net.NS
	}
	if err := startSpawner().Start(p.cmd, ns, syscall.SIGTERM); err != nil {
		log.Close()
		t.Fatalf("start %s: %v", c.Name, err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
		log.Close()
	}()
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ErrOut is what the process has written to standard error so far.
func (p *Process) ErrOut() string { return p.errOut.String() }

// Signal sends a signal; to a process that has ended, none.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Wait waits until the process has ended and returns its exit code, -1 after a
// signal that it did not handle.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("wait for the end of %s: %w", p.Name, ctx.Err())
	}
}

// Kill ends the process at once, without its knowledge.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end, and makes it and its group when it does not.
func (p *Process) Stop() error {
	if !p.Running() {
		return nil
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		err = fmt.Errorf("%s did not end within %s of SIGTERM and was killed", p.Name, stopTimeout)
		killed := syscall.Kill(-p.PID(), syscall.SIGKILL)
		<-p.done
		return errors.Join(err, killed)
	}
	return nil
}
