package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/codes"

	"trivet/internal/config"
	"trivet/internal/errs"
)

const usageCode = codes.InvalidArgument

// newRoot builds the command tree.
func newRoot(a *App, extra []func(*App) *cobra.Command) *cobra.Command {
	root := group(&cobra.Command{
		Use:   "trivet",
		Short: "Intercept, observe and debug a fleet through a manager that does not tip",
		Long: `trivet lets developers intercept running workloads through a manager of three
servers: sessions and intercepts survive the loss of any of them.

Exit codes: 0 ok, 1 failure, 2 usage, 3 not found, 4 denied, 5 conflict,
6 unavailable, 7 timeout, 130 interrupted.`,
	})
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(a.In)
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetFlagErrorFunc(flagError)
	a.addGlobalFlags(root.PersistentFlags())
	completeFlag(root, "context", a.contextNames)
	completeFlag(root, "output", choices("table", "wide", "json", "yaml", "jsonl"))
	completeFlag(root, "consistency", choices("stale", "default", "linearizable"))
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := a.applyEnvironment(cmd.Root().PersistentFlags()); err != nil {
			return err
		}
		return a.prepare()
	}
	for _, make := range append([]func(*App) *cobra.Command{
		newStatusCmd, newVersionCmd, newInterceptCmd, newSessionCmd, newNodeListCmd, newWorkloadCmd,
		newContextCmd, newOperatorCmd, newAuditCmd, newPolicyCmd, newLogLevelCmd, newDoctorCmd,
	}, extra...) {
		join(root, make(a))
	}
	markUsage(root)
	return root
}

// markUsage makes the errors about arguments, of all commands, errors about
// usage.
func markUsage(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || errs.Code(err) == usageCode {
				return err
			}
			return usage("%w", err).WithHint("usage: %s", cmd.UseLine())
		}
	}
	for _, sub := range cmd.Commands() {
		markUsage(sub)
	}
}

// join adds cmd to parent. Where parent has a group of that name already, the
// group gets cmd's subcommands.
func join(parent, cmd *cobra.Command) {
	for _, have := range parent.Commands() {
		if have.Name() == cmd.Name() {
			for _, sub := range cmd.Commands() {
				cmd.RemoveCommand(sub)
				have.AddCommand(sub)
			}
			return
		}
	}
	parent.AddCommand(cmd)
}

func (a *App) addGlobalFlags(f *pflag.FlagSet) {
	f.StringVar(&a.flags.context, "context", "", "`name` of the context to work in")
	f.StringArrayVar(&a.flags.servers, "server", nil,
		"`address` of a server to use instead of those of the context (repeatable)")
	f.StringVarP(&a.flags.namespace, "namespace", "n", "", "`namespace` to work in")
	f.StringVarP(&a.flags.output, "output", "o", "table", "`format` of the output: table, wide, json, yaml or jsonl")
	f.DurationVar(&a.flags.timeout, "timeout", 0, "give up after this `time` (default 15s; intercept create 30s until active)")
	f.StringVar(&a.flags.consistency, "consistency", "", "how fresh reads have to be: stale, default or linearizable")
	f.SortFlags = false
}

// applyEnvironment sets the global flags that are not on the command line from
// TRIVET_<NAME>.
func (a *App) applyEnvironment(f *pflag.FlagSet) error {
	var problem error
	f.VisitAll(func(flag *pflag.Flag) {
		variable := "TRIVET_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
		value := a.Getenv(variable)
		if flag.Changed || value == "" || flag.Name == "help" {
			return
		}
		values := []string{value}
		if flag.Name == "server" {
			values = strings.Split(value, ",")
		}
		for _, v := range values {
			if err := f.Set(flag.Name, v); err != nil && problem == nil {
				problem = usage("environment variable %s: %q is not a value for --%s", variable, value, flag.Name)
			}
		}
	})
	return problem
}

// group makes cmd a command that only has subcommands: called without one it
// prints its help, with an unknown one it suggests.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, args[0])
	}
	cmd.Annotations = map[string]string{"group": "true"}
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	text := fmt.Sprintf("unknown command %q for %q", name, cmd.CommandPath())
	if near := config.Closest(name, names); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	}
	return usage("%s", text).WithHint("%q lists the commands", cmd.CommandPath()+" --help")
}

// flagError turns pflag's errors into ours.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usage("%w", err).WithHint("see %q", cmd.CommandPath()+" --help")
	}
	// An unknown command is met after its flags, and is the real mistake.
	if args := cmd.Flags().Args(); cmd.Annotations["group"] != "" && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	if unknown.GetSpecifiedShortnames() != "" {
		return usage("unknown flag -%s", unknown.GetSpecifiedName()).
			WithHint("see %q", cmd.CommandPath()+" --help")
	}
	var names []string
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.InheritedFlags()} {
		set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	}
	text := "unknown flag --" + unknown.GetSpecifiedName()
	if near := config.Closest(unknown.GetSpecifiedName(), names); near != "" {
		text += "; did you mean --" + near + "?"
	}
	return usage("%s", text).WithHint("see %q", cmd.CommandPath()+" --help")
}

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("%s takes no arguments, got %q", cmd.CommandPath(), args[0])
	}
	return nil
}

// oneArg demands exactly one argument, which name describes.
func oneArg(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return usage("%s needs %s", cmd.CommandPath(), name).WithHint("usage: %s", cmd.UseLine())
		case len(args) > 1:
			return usage("%s takes one argument, got %q too", cmd.CommandPath(), args[1]).
				WithHint("usage: %s", cmd.UseLine())
		}
		return nil
	}
}
