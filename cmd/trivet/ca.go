package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/cmd/trivet/bundles"
	"trivet/internal/errs"
	"trivet/internal/pki"
)

// defaultLeafTTL of `ca init`: offline bundles are not renewed by themselves.
const defaultLeafTTL = 90 * 24 * time.Hour

func newCACmd(app *App) *cobra.Command {
	cmd := &cobra.Command{Use: "ca", Short: "Make a cluster's certificates, and renew what signs them"}
	o := bundles.Options{}
	init := &cobra.Command{
		Use:   "init --dir DIR --cluster NAME --server-name NAME…",
		Short: "Make the CA and bundles for servers, nodes, clients and operators",
		Long: "Make the CA of a cluster and one bundle (ca.crt, tls.crt, tls.key) per name. Run again\n" +
			"with the same --dir and --cluster to add names. Works without any server.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if o.Dir == "" || o.Cluster == "" {
				return errs.New(codes.InvalidArgument, "USAGE", "--dir and --cluster must be set").
					WithHint("for example: trivet ca init --dir pki --cluster prod --server-name server-1 --server-name server-2 --server-name server-3")
			}
			made, err := bundles.Init(o, time.Now())
			for _, m := range made {
				fmt.Fprintf(app.Out, "%-10s %-24s %s (valid until %s)\n", m.ID.Role, m.ID.Name, m.Dir, m.NotAfter.Format(time.DateOnly))
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(app.Err, "Move %s/%s/root.key to a safe place off this machine; nothing here needs it day to day.\n", o.Dir, bundles.CADir)
			return nil
		},
	}
	f := init.Flags()
	f.StringVar(&o.Dir, "dir", "", "directory for the CA and the bundles")
	f.StringVar(&o.Cluster, "cluster", "", "name of the cluster in all identities")
	f.StringArrayVar(&o.Servers, "server-name", nil, "name of a server (repeatable)")
	f.StringArrayVar(&o.Nodes, "node-name", nil, "name of a node (repeatable)")
	f.StringArrayVar(&o.Clients, "client-name", nil, "name of a client (repeatable)")
	f.StringArrayVar(&o.Operators, "operator-name", nil, "name of an operator (repeatable)")
	f.BoolVar(&o.Keep, "keep", false, "leave bundles alone that exist already")
	f.DurationVar(&o.TTL, "ttl", defaultLeafTTL, "how long the certificates are valid")
	cmd.AddCommand(init, newCAShowCmd(app), newCARotateCmd(app))
	return cmd
}

// caDir is where the CA is below what was given to ca init as --dir; the CA's
// own directory does as well.
func caDir(dir string) string {
	below := filepath.Join(dir, bundles.CADir)
	if info, err := os.Stat(below); err == nil && info.IsDir() {
		return below
	}
	return dir
}

// bundleThere tells whether there is a bundle, whole or not, in dir.
func bundleThere(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, pki.ChainFile))
	return err == nil
}
