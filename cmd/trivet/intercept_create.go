package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/client"
	"trivet/internal/build"
	"trivet/internal/errs"
	"trivet/internal/render"
)

const (
	// activeTimeout is how long intercept create waits for the intercept to
	// become active unless --timeout says otherwise: agents may have to start.
	activeTimeout = 30 * time.Second
	// listenGrace is how long a command may take until it listens.
	listenGrace = 10 * time.Second
)

// createOptions are the flags of intercept create.
type createOptions struct {
	workload, attach string
	ports            []string
	lease            time.Duration
	force, detach    bool
}

func newInterceptCreateCmd(a *App) *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create NAME --workload W --port LOCAL[:REMOTE]… [-- CMD…]",
		Short: "Intercept a workload and serve its traffic from here",
		Long: `Intercept a workload: new connections to its port REMOTE (a name or a number; not
needed if it has only one) go to 127.0.0.1:LOCAL on this machine. Each further
--port LOCAL:REMOTE adds a port of the same pods.

The command stays in the foreground, says what happens, reconnects by itself
when servers come and go, and removes the intercept on Ctrl-C. With -- CMD it
runs CMD with the workload's environment and TRIVET_INTERCEPT_ID, and ends with
CMD and with its exit code.

With -o jsonl it prints one event per line, for programs: created, connected,
reconnecting, renewed, waiting, active, no-agent, connection, closed, refused,
warning, failed, removed, started, exited.`,
		Example: `  trivet intercept create api --workload api --port 8080
  trivet intercept create api --workload api -n shop --port 8080:http --for 2h -- go run .
  trivet intercept create api --workload api --port 8080:http --port 9001:admin`,
		Args: func(cmd *cobra.Command, args []string) error {
			if n := cmd.ArgsLenAtDash(); n >= 0 {
				args = args[:n]
			}
			return oneArg("a NAME for the intercept")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if cmd.ArgsLenAtDash() >= 0 && len(command) == 0 {
				return usage("nothing follows --").WithHint("give the command to run, or leave -- out")
			}
			spec, err := o.spec(args[0], len(command) > 0)
			if err != nil {
				return err
			}
			if o.detach {
				return a.detach(cmd, spec)
			}
			return a.follow(cmd.Context(), o, spec, command)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.workload, "workload", "w", "", "`name` of the workload to intercept")
	completeFlag(cmd, "workload", a.workloadNames())
	f.StringArrayVarP(&o.ports, "port", "p", nil, "local `port`, and after a colon the workload's, by name or number (repeatable)")
	f.DurationVar(&o.lease, "for", 0, "end the intercept after this `time`")
	f.BoolVar(&o.force, "force", false, "displace an intercept whose owner is away")
	f.BoolVar(&o.detach, "detach", false, "go on in the background once the intercept is active")
	f.StringVar(&o.attach, "attach", "", "`address` of the server to begin with; the others remain for failover")
	f.SortFlags = false
	return cmd
}

// spec reads the flags.
func (o createOptions) spec(name string, command bool) (client.InterceptSpec, error) {
	spec := client.InterceptSpec{Name: name, Workload: o.workload, Force: o.force, Lease: o.lease}
	if o.workload == "" {
		return spec, usage("--workload is not set").WithHint("trivet workload list shows what there is")
	}
	if len(o.ports) == 0 {
		return spec, usage("--port is not set").
			WithHint("give the port that your process listens on, for example --port 8080")
	}
	for n, text := range o.ports {
		local, remote, _ := strings.Cut(text, ":")
		port, err := strconv.Atoi(local)
		switch {
		case err != nil || port < 1 || port > 65535:
			return spec, usage("--port %s: %q is not a port", text, local).
				WithHint("it is LOCAL or LOCAL:REMOTE; LOCAL is a number from 1 to 65535")
		case n == 0:
			spec.LocalPort, spec.Port = port, remote
		case remote == "":
			return spec, usage("--port %s: a further port needs the workload's", text).WithHint("for example --port %d:admin", port)
		default:
			spec.Further = append(spec.Further, client.FurtherPort{Local: port, Remote: remote})
		}
	}
	if o.lease < 0 {
		return spec, usage("--for must not be negative")
	}
	if command {
		if o.detach {
			return spec, usage("--detach and a command exclude each other").
				WithHint("start the command yourself, or leave --detach out")
		}
		spec.StartGrace = listenGrace
	}
	return spec, spec.Validate()
}

// follow makes an intercept and shows what happens to it until it is over, the
// user interrupts, or command ends. It leaves nothing behind at the manager.
func (a *App) follow(ctx context.Context, o createOptions, spec client.InterceptSpec, command []string) error {
	p := a.Printer()
	if p.Format == render.JSON || p.Format == render.YAML {
		return usage("intercept create reports as it goes, which %s cannot show", p.Format).WithHint("use -o jsonl")
	}
	out := a.Out
	if len(command) > 0 {
		out = a.Err // standard output is the command's
	}
	report := &reporter{out: out, jsonl: p.Format == render.JSONL, now: a.Now}

	startCtx, cancel := a.timeoutOr(ctx, activeTimeout)
	defer cancel()
	pool, session, err := a.openSession(startCtx, o.attach)
	if err != nil {
		return err
	}
	defer pool.Close()
	defer report.leave(ctx, session)

	if len(command) == 0 {
		if err := client.CheckListener(startCtx, spec); err != nil {
			report.event(warning(spec.Name, err))
		}
	}
	intercept, err := session.Intercept(startCtx, spec)
	if err != nil {
		return err
	}
	report.created(intercept)
	defer report.pumping(ctx, session)()

	if err := intercept.WaitActive(startCtx); err != nil {
		return err
	}
	if len(command) > 0 {
		return a.runBeside(ctx, report, intercept, command)
	}
	select {
	case <-ctx.Done():
		return exitStatus(render.ExitCode(context.Cause(ctx)))
	case <-intercept.Done():
		return over(intercept)
	}
}

// over is how a command ends whose intercept is over: that its time is up is
// no failure.
func over(i *client.Intercept) error {
	if err := i.Err(); errs.Reason(err) != client.ReasonLeaseOver {
		return err
	}
	return nil
}

func (a *App) openSession(ctx context.Context, attach string) (*client.Pool, *client.Session, error) {
	c, err := a.Context()
	if err != nil {
		return nil, nil, err
	}
	if attach != "" {
		if err := client.ValidateAddress(attach); err != nil {
			return nil, nil, err
		}
	}
	dir, err := a.stateDir()
	if err != nil {
		return nil, nil, err
	}
	install, err := client.InstallID(dir)
	if err != nil {
		return nil, nil, err
	}
	pool, err := client.Dial(ctx, c, client.Options{Prefer: attach, Consistency: a.consistency()})
	if err != nil {
		return nil, nil, err
	}
	session, err := client.OpenSession(ctx, pool, client.SessionOptions{
		Name: client.UserName(a.Getenv), InstallID: install, Version: build.Version, Namespace: c.Namespace,
	})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return pool, session, nil
}

func warning(intercept string, err error) client.Event {
	e := errs.From(err)
	return client.Event{Kind: client.EventWarning, Intercept: intercept, Message: e.Message, Hint: e.Hint, Err: err}
}
