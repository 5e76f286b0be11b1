package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"trivet/internal/fault"
	"trivet/internal/spawn"
	"trivet/internal/tunfwd"
)

// stopTime is how long a server may take to end after SIGTERM.
const stopTime = 20 * time.Second

// Server is one server of the cluster, whether its process runs or not. Its
// methods are safe for concurrent use.
type Server struct {
	// Index is its place, Name its name: server-1 has place 0.
	Index int
	Name  string
	// Host is where it lives, Address where it can be dialled.
	Host    *tunfwd.Host
	Address string
	// Data is where its memory disk is mounted; Log what it says; Faults the file that disturbs it from inside.
	Data, Log, Faults string

	spawn *spawn.Spawner
	exe   string
	args  []string
	env   []string

	mu     sync.Mutex
	cmd    *exec.Cmd     // guarded by mu
	done   chan struct{} // guarded by mu; closed when cmd has ended
	starts int           // guarded by mu
}

// Start starts the process.
func (s *Server) Start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runningLocked() {
		return fmt.Errorf("start %s: it runs", s.Name)
	}
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(s.exe, s.args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := s.spawn.Start(cmd, s.Host.NS, syscall.SIGKILL); err != nil {
		return fmt.Errorf("start %s: %w", s.Name, err)
	}
	done := make(chan struct{})
	s.cmd, s.done = cmd, done
	s.starts++
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(done)
	}()
	return nil
}

func (s *Server) runningLocked() bool {
	if s.cmd == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// Running says whether the process has not ended.
func (s *Server) Running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked()
}

// PID is the process's id, that of the last one when none runs.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
}

// Signal sends a signal to the process.
func (s *Server) Signal(sig syscall.Signal) error {
	s.mu.Lock()
	cmd := s.cmd
	s.mu.Unlock()
	if cmd == nil {
		return fmt.Errorf("signal %s: it was never started", s.Name)
	}
	if err := cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", s.Name, err)
	}
	return nil
}

// Wait waits for the end of the process and returns how it ended.
func (s *Server) Wait(ctx context.Context) (*os.ProcessState, error) {
	s.mu.Lock()
	cmd, done := s.cmd, s.done
	s.mu.Unlock()
	if cmd == nil {
		return nil, fmt.Errorf("wait for %s: it was never started", s.Name)
	}
	select {
	case <-done:
		return cmd.ProcessState, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the end of %s: %w", s.Name, ctx.Err())
	}
}

// Kill ends the process at once and wants it to have died of that.
func (s *Server) Kill(ctx context.Context) error {
	if err := s.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	st, err := s.Wait(ctx)
	if err != nil {
		return err
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		return fmt.Errorf("kill %s: it had ended before: %s", s.Name, st)
	}
	return nil
}

// Stop asks the process to end, and makes it when it does not.
func (s *Server) Stop() error {
	if !s.Running() {
		return nil
	}
	if err := errors.Join(s.Signal(syscall.SIGCONT), s.Signal(syscall.SIGTERM)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if _, err := s.Wait(ctx); err != nil {
		killed := s.Signal(syscall.SIGKILL)
		_, _ = s.Wait(context.Background())
		return errors.Join(fmt.Errorf("%s did not end within %s of SIGTERM and was killed", s.Name, stopTime), killed)
	}
	return nil
}

// stopped says whether the kernel has the process stopped.
func (s *Server) stopped() bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.PID()))
	if err != nil {
		return false
	}
	// pid (name) state …; the name may contain anything.
	_, rest, ok := strings.Cut(string(raw[strings.LastIndexByte(string(raw), ')')+1:]), " ")
	return ok && strings.HasPrefix(rest, "T")
}

// Disturb replaces the faults that the server has from inside.
func (s *Server) Disturb(f fault.Faults) error {
	if f == (fault.Faults{}) {
		if err := os.Remove(s.Faults); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	next := s.Faults + ".next"
	if err := os.WriteFile(next, raw, 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.Faults)
}

// forgetSeen makes Seen tell only of what is still to come.
func (s *Server) forgetSeen() error {
	if err := os.Remove(s.Faults + fault.SeenSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Seen reads what the server says it was disturbed by; it is empty when it was
// not since forgetSeen.
func (s *Server) Seen() (fault.Seen, error) {
	var seen fault.Seen
	raw, err := os.ReadFile(s.Faults + fault.SeenSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return seen, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &seen)
	}
	return seen, err
}

// said returns what the server has logged after an offset of its log.
func (s *Server) said(after int64) (string, error) {
	f, err := os.Open(s.Log)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	out := make([]byte, max(0, st.Size()-after))
	n, err := f.ReadAt(out, after)
	if n == len(out) {
		err = nil
	}
	return string(out[:n]), err
}

// logged is how long the log is.
func (s *Server) logged() int64 {
	st, err := os.Stat(s.Log)
	if err != nil {
		return 0
	}
	return st.Size()
}

// dataDir is the server's data directory, below the root of its disk.
func (s *Server) dataDir() string { return filepath.Join(s.Data, "data") }

// raftDir is where the server keeps its log and its snapshots.
func (s *Server) raftDir() string { return filepath.Join(s.dataDir(), "raft") }
