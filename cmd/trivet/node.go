package main

import (
	"github.com/spf13/cobra"

	"trivet/internal/enroll"
	"trivet/internal/pki"
	"trivet/node"
)

// newNodeCmd makes the daemon's commands; those that ask about nodes are added
// beside them.
func newNodeCmd(app *App) *cobra.Command {
	cmd := &cobra.Command{Use: "node", Short: "Run a node, or see the nodes"}
	var path, token string
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
			if token != "" {
				cfg.Token = token
			}
			if err := app.enrolFirst(cmd.Context(), cfg.Bundle, enroll.Request{
				Token: cfg.Token, Role: pki.RoleNode, Name: cfg.Name, Servers: cfg.Servers,
			}); err != nil {
				return err
			}
			return node.Run(cmd.Context(), cfg)
		},
	}
	run.Flags().StringVar(&path, "config", "node.yaml", "configuration file")
	run.Flags().StringVar(&token, "token", "", "`token` for the first certificate; @FILE reads it from a file, - from standard input")
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
