package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/term"
	"google.golang.org/grpc/codes"

	"trivet/client"
	"trivet/internal/errs"
)

// interceptIDVariable tells a command which intercept it serves.
const interceptIDVariable = "TRIVET_INTERCEPT_ID"

// forwarded are the signals that the command gets too.
var forwarded = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// runBeside runs command with the workload's environment until it ends, and
// returns its exit code as an exitStatus. If the intercept is over first, the
// command is told to end.
func (a *App) runBeside(ctx context.Context, report *reporter, i *client.Intercept, command []string) error {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = environment(os.Environ(), i)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.In, a.Out, a.Err
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, forwarded...)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		code := codes.FailedPrecondition
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			code = codes.NotFound
		}
		return errs.New(code, "COMMAND_NOT_STARTED", "start the command: %w", err)
	}
	pid := cmd.Process.Pid
	report.started(pid, command[0])
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	watchCtx, cancel := context.WithTimeout(ctx, listenGrace)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if err := client.AwaitListener(watchCtx, i.Spec()); err != nil && !errors.Is(watchCtx.Err(), context.Canceled) {
			report.event(warning(i.Spec().Name, err))
		}
	}()
	defer func() { cancel(); <-watched }()

	var lost error
	interceptDone := i.Done()
	for {
		select {
		case s := <-signals:
			if s != syscall.SIGINT || !a.terminal() { // a terminal's Ctrl-C reaches it anyway
				_ = cmd.Process.Signal(s) // it may just have ended
			}
		case <-interceptDone:
			interceptDone, lost = nil, over(i)
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case err := <-ended:
			code, err := exitCode(err)
			if err != nil {
				return err
			}
			report.exited(pid, code)
			switch {
			case lost != nil:
				return lost
			case code != 0:
				return exitStatus(code)
			}
			return nil
		}
	}
}

func (a *App) terminal() bool {
	f, ok := a.In.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// exitCode reads what a command ended with; for one that a signal ended it is
// that of a shell.
func exitCode(err error) (int, error) {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case !errors.As(err, &exit):
		return 0, errs.New(codes.Unknown, "COMMAND_LOST", "wait for the command: %w", err)
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}

// kept are the variables that belong to this machine: with the workload's
// values the command would not even start.
var kept = []string{"PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "OLDPWD", "TMPDIR", "TERM", "HOSTNAME", "_"}

// environment is own overlaid with the workload's.
func environment(own []string, i *client.Intercept) []string {
	return merge(own, i.Info().GetEnvironment(), i.ID())
}

func merge(own []string, workload map[string]string, id string) []string {
	out := slices.DeleteFunc(slices.Clone(own), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		_, theirs := workload[name]
		return name == interceptIDVariable || theirs && !slices.Contains(kept, name)
	})
	for name, value := range workload {
		if !slices.Contains(kept, name) && name != interceptIDVariable {
			out = append(out, name+"="+value)
		}
	}
	slices.Sort(out)
	return append(out, interceptIDVariable+"="+id)
}
