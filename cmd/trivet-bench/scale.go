package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"trivet/bench"
)

func sessions(output, exe *string) *cobra.Command {
	o := bench.SessionsOptions{Sessions: 100_000, Connections: 1800, Rounds: 3, Time: 20 * time.Second, Progress: os.Stderr}
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "What it costs to keep many sessions alive",
		Long: `Let many clients arrive, half of them of the older generation, which sends a
keepalive every 5 s, half of the newer one, which sends one a minute, and measure
the CPU and the memory of the leader.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Exe, err = trivet(*exe); err != nil {
				return err
			}
			res, err := bench.Sessions(cmd.Context(), o)
			if err != nil {
				return err
			}
			return show(res, *output, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for data and logs; kept (default: a temporary one)")
	f.IntVar(&o.Sessions, "sessions", o.Sessions, "how many sessions")
	f.IntVar(&o.Connections, "connections", o.Connections, "over how many connections")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "how often it is measured")
	f.DurationVar(&o.Time, "time", o.Time, "for how long each time")
	return cmd
}

func watch(output, exe *string) *cobra.Command {
	o := bench.WatchOptions{Watchers: 10_000, Connections: 200, Changes: 20, Progress: os.Stderr}
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "How long many watchers take to see a change",
		Long: `Let many clients watch the agents of a namespace, in changes as newer ones do and
in snapshots as older ones do, and measure how long a change of one agent takes
until all have seen it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Exe, err = trivet(*exe); err != nil {
				return err
			}
			res, err := bench.Watch(cmd.Context(), o)
			if err != nil {
				return err
			}
			return show(res, *output, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for data and logs; kept (default: a temporary one)")
	f.IntVar(&o.Watchers, "watchers", o.Watchers, "how many watch")
	f.IntVar(&o.Connections, "connections", o.Connections, "over how many connections")
	f.IntVar(&o.Changes, "changes", o.Changes, "how often something changes")
	return cmd
}
