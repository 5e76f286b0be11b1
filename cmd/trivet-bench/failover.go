package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"trivet/bench"
)

func failover(output, exe *string) *cobra.Command {
	o := bench.FailoverOptions{Rounds: 20, Progress: os.Stderr}
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Time from the loss of the leader to the first acknowledged write",
		Long: "Take the leader of three servers away, by every mode that is possible here, and measure the\n" +
			"time to the first acknowledged write, beside etcd when it is installed. Modes: " + strings.Join(bench.Modes(), ", ") + ".\n" +
			"disk needs a trivet that was built with -tags chaos, partition needs root.\n" +
			"With --sessions the manager is filled first, and what it lost is counted after each round.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Exe, err = trivet(*exe); err != nil {
				return err
			}
			res, err := bench.Failover(cmd.Context(), o)
			if err != nil {
				return err
			}
			return show(res, *output, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for data and logs; kept (default: a temporary one)")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "how often the leader is taken away by each mode")
	f.StringSliceVar(&o.Modes, "mode", nil, "modes to run (default: all that are possible)")
	f.IntVar(&o.Sessions, "sessions", 0, "sessions that trivet holds meanwhile; etcd is left out then")
	f.IntVar(&o.Intercepts, "intercepts", 0, "intercepts that trivet holds meanwhile; 1 in 10 sessions is an agent's")
	f.BoolVar(&o.NoEtcd, "no-etcd", false, "leave etcd out")
	return cmd
}
