package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"trivet/internal/netns"
	"trivet/internal/spawn"
)

// stopTime is how long a process may take to end after SIGTERM.
const stopTime = 20 * time.Second

// ticksPerSecond is the kernel's unit of CPU time in /proc on every
// architecture that Go runs on.
const ticksPerSecond = 100

// proc is one server process, which may be started again after its end. Its
// methods are safe for concurrent use.
type proc struct {
	name, log string
	exe       string
	args, env []string
	spawn     *spawn.Spawner
	// ns is where it runs; nil: here.
	ns *netns.Handle

	mu   sync.Mutex
	cmd  *exec.Cmd     // guarded by mu
	done chan struct{} // guarded by mu; closed when cmd has ended
}

func (p *proc) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.exe, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := p.spawn.Start(cmd, p.ns, syscall.SIGKILL); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(done)
	}()
	return nil
}

func (p *proc) state() (*exec.Cmd, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd, p.done
}

func (p *proc) running() bool {
	cmd, done := p.state()
	if cmd == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

func (p *proc) signal(sig syscall.Signal) error {
	cmd, _ := p.state()
	if cmd == nil {
		return fmt.Errorf("signal %s: it was never started", p.name)
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.name, err)
	}
	return nil
}

// wait waits for the end of the process.
func (p *proc) wait(ctx context.Context) error {
	_, done := p.state()
	if done == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", p.name, ctx.Err())
	}
}

// stop asks the process to end and makes it when it does not.
func (p *proc) stop() error {
	if !p.running() {
		return nil
	}
	if err := errors.Join(p.signal(syscall.SIGCONT), p.signal(syscall.SIGTERM)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if p.wait(ctx) == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM", p.name, stopTime),
		p.signal(syscall.SIGKILL), p.wait(context.Background()))
}

// cpu is the CPU time that the process has used since it was started.
func (p *proc) cpu() (time.Duration, error) {
	cmd, _ := p.state()
	if cmd == nil {
		return 0, fmt.Errorf("CPU time of %s: it was never started", p.name)
	}
	raw, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", p.name, err)
	}
	return parseCPU(string(raw))
}

// memory is what the process has of the machine's memory, bytes.
func (p *proc) memory() (int64, error) {
	cmd, _ := p.state()
	if cmd == nil {
		return 0, fmt.Errorf("memory of %s: it was never started", p.name)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", cmd.Process.Pid))
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 2 {
		return 0, fmt.Errorf("memory of %s: %q", p.name, raw)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", p.name, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// parseCPU adds user and system time of a line of /proc/PID/stat.
func parseCPU(stat string) (time.Duration, error) {
	// pid (name) state …; the name may contain anything, also parentheses.
	const user, system = 11, 12 // places after the name
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("CPU time: %q is too short", stat)
	}
	var ticks uint64
	for _, i := range []int{user, system} {
		n, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("CPU time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// said returns what the process has logged after an offset of its log.
func (p *proc) said(after int64) (string, error) {
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return "", fmt.Errorf("read what %s said: %w", p.name, err)
	}
	return string(raw[min(after, int64(len(raw))):]), nil
}

// logged is how long the log is.
func (p *proc) logged() int64 {
	st, err := os.Stat(p.log)
	if err != nil {
		return 0
	}
	return st.Size()
}

// tail returns the end of the log, for errors.
func (p *proc) tail() string {
	const last = 2000
	said, err := p.said(max(0, p.logged()-last))
	if err != nil {
		return err.Error()
	}
	return said
}
