package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// stopTimeout is how long a process may take to end by itself.
const stopTimeout = 15 * time.Second

// Proc is one process of the environment.
type Proc struct {
	// Name is unique in the environment; LogFile receives its output.
	Name, LogFile string

	env  *Env
	exe  string
	args []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{}
	err  error
}

// Start starts the process, again if it has ended. Its output is appended to
// LogFile.
func (p *Proc) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.exe, p.args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.env.spawn.Start(cmd, nil, syscall.SIGTERM); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		if p.cmd == cmd {
			p.err = err
		}
		p.mu.Unlock()
		close(done)
	}()
	return nil
}

// Use makes the next Start run another program.
func (p *Proc) Use(exe string) { p.exe = exe }

// PID is the process id, 0 if it was never started.
func (p *Proc) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Running says whether the process has not ended.
func (p *Proc) Running() bool {
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

// Done is closed when the process has ended; of one that was never started it
// is closed already.
func (p *Proc) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done == nil {
		closed := make(chan struct{})
		close(closed)
		return closed
	}
	return p.done
}

// Signal sends a signal.
func (p *Proc) Signal(sig os.Signal) error {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	if cmd == nil {
		return fmt.Errorf("signal %s: not started", p.Name)
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Kill ends the process at once and waits until it has ended.
func (p *Proc) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.Done()
	return nil
}

// Stop asks the process to end and kills it if it does not in time.
func (p *Proc) Stop() error {
	if !p.Running() {
		return nil
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	select {
	case <-p.Done():
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("stop %s: it did not end within %s and was killed", p.Name, stopTimeout), p.Kill())
	}
}

// tail returns the last bytes of the log, for errors.
func (p *Proc) tail() string {
	const last = 2000
	raw, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	if len(raw) > last {
		raw = raw[len(raw)-last:]
	}
	return string(raw)
}
