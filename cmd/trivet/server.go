package main

import (
	"errors"
	"log/slog"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/cluster"
	"trivet/cluster/replica"
	"trivet/internal/errs"
	"trivet/internal/logring"
)

// recentLog is how much of its own log a server keeps for a support bundle.
const recentLog = 4 << 20

func newServerCmd(app *App) *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "Run a server of the manager"}
	var path, token string
	var noDeathWatch, noSync bool
	run := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run a server until it is told to stop",
		Long: "Run one of the manager's servers. On SIGTERM it hands leadership over, sends its\n" +
			"peers to the other servers and ends.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := loadServerFile(path)
			if err != nil {
				return err
			}
			logger, level, err := newLogger(app.Err, f.Log.Level, f.Log.Format)
			if err != nil {
				return err
			}
			if token != "" {
				f.Token = token
			}
			if err := app.enrolFirst(cmd.Context(), f.Bundle, f.enrolment()); err != nil {
				return err
			}
			cfg, err := f.config(path)
			if err != nil {
				return err
			}
			ring := logring.New(recentLog)
			cfg.RecentLog = ring.Bytes
			cfg.Logger = slog.New(ring.Handler(logger.Handler(), slog.LevelInfo)).With("server", f.Name)
			cfg.Level = level
			cfg.NoDeathWatch, cfg.NoSync = noDeathWatch, noSync
			srv, err := cluster.Start(cfg)
			if err != nil {
				return explainStart(err, path)
			}
			return srv.Run(cmd.Context())
		},
	}
	run.Flags().StringVar(&path, "config", "", "configuration file")
	run.Flags().StringVar(&token, "token", "", "`token` for the first certificate; @FILE reads it from a file, - from standard input")
	run.Flags().BoolVar(&noDeathWatch, "no-death-watch", false, "leave failover to Raft's timeouts")
	run.Flags().BoolVar(&noSync, "no-sync", false, "do not sync the log to disk (benches only)")
	_ = run.Flags().MarkHidden("no-death-watch")
	_ = run.Flags().MarkHidden("no-sync")
	cmd.AddCommand(run, newServerCheckCmd(app))
	return cmd
}

// explainStart adds what to do to the errors that users meet when they start a
// server.
func explainStart(err error, path string) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return errs.New(codes.FailedPrecondition, "PORT_IN_USE", "%w", err).
			WithHint("another process listens there: stop it, or change listen or admin in %s", path)
	}
	if errors.Is(err, replica.ErrForeignData) {
		// Going on could elect two leaders: this server has forgotten its votes.
		return errs.New(codes.FailedPrecondition, "FOREIGN_DATA", "%w", err).
			WithHint("bring its files back, or move the directory away and have an operator replace the server under a new id")
	}
	return err
}
