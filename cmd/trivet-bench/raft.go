package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"

	"trivet/bench"
)

func raft(output, exe *string) *cobra.Command {
	o := bench.RaftOptions{Rounds: 5, Duration: 2 * time.Second, Progress: os.Stderr}
	cmd := &cobra.Command{
		Use:   "raft",
		Short: "Durable writes and reads on three servers, beside etcd when it is installed",
		Long: "Measure writes and reads through gRPC with mutual TLS on three server processes with 1, 64\n" +
			"and 1,024 writers. etcd, when the command is found, runs beside it with TLS and in plaintext\n" +
			"and is driven by the same client. The stores take turns in every round.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Exe, err = trivet(*exe); err != nil {
				return err
			}
			res, err := bench.Raft(cmd.Context(), o)
			if err != nil {
				return err
			}
			return show(res, *output, os.Stdout)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for data and logs, on the disk to measure; kept (default: a temporary one)")
	f.IntVar(&o.Rounds, "rounds", o.Rounds, "how often every case is measured")
	f.DurationVar(&o.Duration, "duration", o.Duration, "how long a case is measured in a round")
	f.StringArrayVar(&o.Cases, "case", nil, "measure only cases whose name contains this (repeatable)")
	f.StringArrayVar(&o.Also, "also", nil, "another trivet binary to measure beside (repeatable)")
	f.BoolVar(&o.NoEtcd, "no-etcd", false, "leave etcd out")
	f.StringVar(&o.Profiles, "profiles", "", "directory for CPU profiles of the servers in every case, of a round that is not counted")
	f.StringSliceVar(&o.LogStores, "log-store", nil, "log stores to compare (default: all that the servers offer)")
	return cmd
}
