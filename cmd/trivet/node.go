package main

import (
	"github.com/spf13/cobra"

	"trivet/node"
)

// newNodeCmd makes the daemon's commands; those that ask about nodes are added
// beside them.
func newNodeCmd(*App) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Run a node, or see the nodes"}
	var path string
	run := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run the node daemon until it is told to stop",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := node.LoadConfig(path)
			if err != nil {
				return err
			}
			cfg.Version = Version()
			return node.Run(cmd.Context(), cfg)
		},
	}
	run.Flags().StringVar(&path, "config", "node.yaml", "configuration file")
	traffic := &cobra.Command{
		Use:    "traffic",
		Short:  "The process that serves traffic; started by the holder only",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			socket, err := node.InheritedSocket()
			if err != nil {
				return err
			}
			return node.RunTraffic(cmd.Context(), socket)
		},
	}
	cmd.AddCommand(run, traffic)
	return cmd
}
