package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"trivet/client"
	"trivet/internal/errs"
	"trivet/internal/render"
)

// defaultTimeout bounds commands that ask and answer.
const defaultTimeout = client.DefaultCallTimeout

// App is what commands need of the outside world, and their global flags. One
// App runs one command line.
type App struct {
	In        io.Reader
	Out, Err  io.Writer
	LookupEnv func(string) (string, bool)
	Now       func() time.Time

	flags globalFlags
	args  []string // the command line
}

// globalFlags are those of every command.
type globalFlags struct {
	context, namespace, output, consistency string
	servers                                 []string
	timeout                                 time.Duration

	format render.Format // output, once parsed
}

// NewApp returns an App around the given world.
func NewApp(in io.Reader, out, errOut io.Writer, lookupEnv func(string) (string, bool)) *App {
	return &App{In: in, Out: out, Err: errOut, LookupEnv: lookupEnv, Now: time.Now}
}

// Getenv returns an environment variable, "" when it is not set.
func (a *App) Getenv(name string) string {
	value, _ := a.LookupEnv(name)
	return value
}

// exitStatus is an error that only says with what the process has to exit; it
// is not printed.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Run runs one command line, prints its error if there is one, and returns the
// exit code. extra adds commands.
func (a *App) Run(ctx context.Context, args []string, extra ...func(*App) *cobra.Command) int {
	a.args = args
	root := newRoot(a, extra)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var status exitStatus
	if errors.As(err, &status) {
		return int(status)
	}
	// An interrupted command fails with whatever it was doing.
	if err != nil && errors.Is(context.Cause(ctx), errInterrupted) {
		err = errInterrupted
	}
	a.Printer().Error(err)
	return render.ExitCode(err)
}

// Printer returns the printer for the chosen output format.
func (a *App) Printer() *render.Printer {
	p := &render.Printer{Out: a.Out, Err: a.Err, Format: a.flags.format}
	if f, ok := a.Out.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			p.Width = width
		}
	}
	return p
}

// Timeout returns ctx with the time that the command may take: --timeout, or
// the default.
func (a *App) Timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return a.timeoutOr(ctx, defaultTimeout)
}

func (a *App) timeoutOr(ctx context.Context, otherwise time.Duration) (context.Context, context.CancelFunc) {
	d := a.flags.timeout
	if d == 0 {
		d = otherwise
	}
	return context.WithTimeout(ctx, d)
}

// ContextFile returns the context file and prints its warning.
func (a *App) ContextFile() (*client.File, error) {
	path, err := client.DefaultPath(a.Getenv)
	if err != nil {
		return nil, err
	}
	f, err := client.LoadFile(path)
	if err != nil {
		return nil, err
	}
	if w := f.Warning(); w != "" {
		a.Printer().Notef("Warning: %s", w)
	}
	return f, nil
}

// Context returns the context to work in, with --context, --namespace and
// --server applied.
func (a *App) Context() (client.Context, error) {
	f, err := a.ContextFile()
	if err != nil {
		return client.Context{}, err
	}
	c, err := f.Get(a.flags.context)
	if err != nil {
		return client.Context{}, err
	}
	if a.flags.namespace != "" {
		c.Namespace = a.flags.namespace
	}
	if len(a.flags.servers) > 0 {
		c.Servers = a.flags.servers
	}
	for _, s := range c.Servers {
		if err := client.ValidateAddress(s); err != nil {
			return client.Context{}, err
		}
	}
	return c, nil
}

// Dial connects to a server of the context.
func (a *App) Dial(ctx context.Context) (*client.Pool, error) {
	c, err := a.Context()
	if err != nil {
		return nil, err
	}
	if src, err := c.Source(); err == nil && src.Bundle().Warning() != "" {
		a.Printer().Notef("Warning: %s", src.Bundle().Warning())
	}
	return client.Dial(ctx, c, client.Options{Consistency: a.consistency()})
}

// stateDir is where the command line keeps what it makes for itself.
func (a *App) stateDir() (string, error) {
	path, err := client.DefaultPath(a.Getenv)
	return filepath.Dir(path), err
}

func (a *App) consistency() client.Consistency { return client.Consistency(a.flags.consistency) }

// prepare checks the global flags before a command runs.
func (a *App) prepare() error {
	format, err := render.ParseFormat(a.flags.output)
	if err != nil {
		return err
	}
	a.flags.format = format
	if _, err := client.ParseConsistency(a.flags.consistency); err != nil {
		return err
	}
	if a.flags.timeout < 0 {
		return usage("--timeout must not be negative")
	}
	return nil
}

// usage is an error about how the command was called.
func usage(format string, args ...any) *errs.Error {
	return errs.New(usageCode, render.ReasonUsage, format, args...)
}
