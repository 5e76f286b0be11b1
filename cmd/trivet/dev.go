package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"trivet/cmd/trivet/demo"
	"trivet/cmd/trivet/devenv"
)

const devStart = time.Minute

func newDevCmd(app *App) *cobra.Command {
	o := devenv.Options{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a small cluster on this machine until interrupted",
		Long: "Run servers, a node and a sample workload on this machine, with certificates and mutual\n" +
			"TLS, until interrupted. Everything they make is in --dir.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return runDev(cmd.Context(), app, o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", ".trivet", "directory for everything")
	f.IntVar(&o.Servers, "servers", 3, "number of servers: 1, 3 or 5")
	f.IntVar(&o.Nodes, "nodes", 1, "number of nodes: 0 or 1")
	return cmd
}

func runDev(ctx context.Context, app *App, o devenv.Options) error {
	o.Progress = func(format string, args ...any) { fmt.Fprintf(app.Err, format+"\n", args...) }
	sctx, cancel := context.WithTimeout(ctx, devStart)
	defer cancel()
	env, err := devenv.Start(sctx, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(app.Out, "\nThe cluster is up. In another terminal:\n\n  export TRIVET_CONFIG=%s\n  trivet status\n", env.ContextFile)
	if env.Node != nil {
		fmt.Fprintf(app.Out, "  trivet workload list\n  trivet intercept create mine --workload %s --port 9090:%s   # something of yours on port 9090\n  curl %s\n",
			devenv.SampleName, devenv.SamplePort, env.URLs[0])
		if env.StealReason != "" {
			fmt.Fprintf(app.Err, "\nThe node works as a plain proxy in front of the sample: %s\n", env.StealReason)
		}
	}
	fmt.Fprintln(app.Err, "\nCtrl-C ends it.")
	keepRunning(ctx, app, env)
	fmt.Fprintln(app.Err, "stopping")
	return env.Close()
}

// restartAfter leaves time to look at a cluster that misses one of its parts.
const restartAfter = 2 * time.Second

// keepRunning starts again what ends by itself, or by its user's hand, until
// ctx ends.
func keepRunning(ctx context.Context, app *App, env *devenv.Env) {
	var wg sync.WaitGroup
	for _, p := range env.Procs() {
		wg.Go(func() {
			for {
				select {
				case <-p.Done():
				case <-ctx.Done():
					return
				}
				fmt.Fprintf(app.Err, "%s ended; it starts again in %s (its log: %s)\n", p.Name, restartAfter, p.LogFile)
				select {
				case <-time.After(restartAfter):
				case <-ctx.Done():
					return
				}
				if err := p.Start(); err != nil {
					fmt.Fprintf(app.Err, "%s did not start: %v\n", p.Name, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func newDemoCmd(app *App) *cobra.Command {
	o := demo.Options{}
	asJSON := false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show an intercept that survives the death of the leader",
		Long: "Start a cluster on this machine, intercept the sample's traffic, kill the leader, stop\n" +
			"and kill the node's traffic process, and say what was measured. The exit code is 0 only\n" +
			"if everything that was shown held.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Out = app.Out
			if asJSON {
				o.Out = app.Err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Exe = exe
			report, err := demo.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			if asJSON {
				err = report.JSON(app.Out)
			} else {
				report.Table(app.Out)
			}
			if err == nil && !report.OK {
				err = exitStatus(1)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory for everything; kept (default: a temporary one)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object on standard output")
	return cmd
}

func newSampleCmd(*App) *cobra.Command {
	var ns, listen string
	cmd := &cobra.Command{
		Use:    "sample",
		Short:  "Run the sample workload of dev and demo",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return devenv.RunSample(cmd.Context(), ns, listen)
		},
	}
	cmd.Flags().StringVar(&ns, "netns", "", "path of the network namespace to listen in")
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8080", "address to listen on")
	return cmd
}
