package main

import (
	"errors"
	"os"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/cluster"
	"trivet/cluster/replica"
	"trivet/internal/config"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// serverFile is the configuration file of `trivet server run`.
type serverFile struct {
	Name           string          `json:"name"`
	DataDir        string          `json:"dataDir"`
	Bundle         string          `json:"bundle"`
	Listen         string          `json:"listen"`
	Advertise      string          `json:"advertise"`
	Admin          string          `json:"admin"`
	Peers          []serverPeer    `json:"peers"`
	RaftMultiplier int             `json:"raftMultiplier"`
	DrainTimeout   config.Duration `json:"drainTimeout"`
	Log            serverLog       `json:"log"`
}

type serverLog struct {
	Level  string `json:"level"`
	Format string `json:"format"`
}

type serverPeer struct {
	Name    string `json:"name"`
	Address string `json:"address"`
}

// SetDefaults fills in what a file may leave out.
func (f *serverFile) SetDefaults() {
	f.Listen, f.Admin = cluster.DefaultListen, cluster.DefaultAdmin
	f.RaftMultiplier = 1
	f.Log = serverLog{Level: "info", Format: "json"}
}

func newServerCmd(app *App) *cobra.Command {
	cmd := &cobra.Command{Use: "server", Short: "Run a server of the manager"}
	var path string
	var noDeathWatch, noSync bool
	run := &cobra.Command{
		Use:   "run --config FILE",
		Short: "Run a server until it is told to stop",
		Long: "Run one of the manager's servers. On SIGTERM it hands leadership over, sends its\n" +
			"peers to the other servers and ends.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if path == "" {
				return errs.New(codes.InvalidArgument, "USAGE", "--config is not set").WithHint("give the server's YAML file")
			}
			f, err := config.Load[serverFile](path)
			if err != nil {
				return err
			}
			if err := config.Overlay(f, "TRIVET_SERVER_", os.LookupEnv); err != nil {
				return err
			}
			logger, err := newLogger(app.Err, f.Log.Level, f.Log.Format)
			if err != nil {
				return err
			}
			src, err := pki.OpenSource(f.Bundle)
			if err != nil {
				return err
			}
			cfg := cluster.Config{
				Name: f.Name, DataDir: f.DataDir, Listen: f.Listen, Advertise: f.Advertise, Admin: f.Admin, Source: src,
				Multiplier: f.RaftMultiplier, DrainTimeout: f.DrainTimeout.Duration(), Version: Version(),
				Logger: logger.With("server", f.Name), NoDeathWatch: noDeathWatch, NoSync: noSync,
			}
			for _, p := range f.Peers {
				cfg.Peers = append(cfg.Peers, cluster.Peer{Name: p.Name, Address: p.Address})
			}
			if err := cfg.Validate(); err != nil {
				return errs.New(codes.InvalidArgument, config.ReasonInvalid, "%s: %w", path, err).
					WithHint("correct these keys of the server's configuration")
			}
			srv, err := cluster.Start(cfg)
			if err != nil {
				return explainStart(err, path)
			}
			return srv.Run(cmd.Context())
		},
	}
	run.Flags().StringVar(&path, "config", "", "configuration file")
	run.Flags().BoolVar(&noDeathWatch, "no-death-watch", false, "leave failover to Raft's timeouts")
	run.Flags().BoolVar(&noSync, "no-sync", false, "do not sync the log to disk (benches only)")
	_ = run.Flags().MarkHidden("no-death-watch")
	_ = run.Flags().MarkHidden("no-sync")
	cmd.AddCommand(run)
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
