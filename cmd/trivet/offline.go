package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"

	"trivet/cluster/api/operatorapi"
	"trivet/cluster/recover"
	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/render"
)

// recoveredView says what was done.
type recoveredView struct {
	DataDir string       `json:"dataDir"`
	Backup  string       `json:"backup"`
	Servers []memberView `json:"servers"`
}

type memberView struct {
	ID      string `json:"id"`
	Address string `json:"address"`
}

func newRecoverCmd(a *App) *cobra.Command {
	var dir string
	var servers []string
	var yes bool
	cmd := &cobra.Command{
		Use:   "recover --data-dir DIR --with ID=ADDRESS…",
		Short: "Give a stopped server another configuration, after a majority was lost for good",
		Long: `Rewrite the configuration in the data directory of a stopped server to exactly
the servers given, after the majority of a cluster was lost for good. Run it
with the same servers on each survivor, then start them. Writes that only the
lost servers had acknowledged are gone, and entries that were not committed
become so: this is the last resort. A copy of the directory is kept.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" || len(servers) == 0 {
				return usage("--data-dir and --with must be set").WithHint("the server's id is in DIR/server-id: --with $(cat DIR/server-id)=192.0.2.1:7400")
			}
			if !yes {
				return usage("recovering can lose acknowledged writes").WithHint("say --yes if no majority of the servers will ever come back")
			}
			v := recoveredView{DataDir: dir}
			var members []replica.Member
			for _, s := range servers {
				id, address, ok := strings.Cut(s, "=")
				if !ok || id == "" || address == "" {
					return usage("--with %q is not ID=ADDRESS", s)
				}
				members = append(members, replica.Member{ID: id, Address: address, Voter: true})
				v.Servers = append(v.Servers, memberView{id, address})
			}
			ctx, cancel := a.timeoutOr(cmd.Context(), snapshotTime)
			defer cancel()
			var err error
			if v.Backup, err = recover.Recover(ctx, dir, members, a.Now()); err != nil {
				return errs.New(codes.FailedPrecondition, "RECOVER_FAILED", "%w", err).WithHint("nothing was changed; stop the server, and give the directory that its dataDir names")
			}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s now names %d servers; what it was before is in %s\n", v.DataDir, len(v.Servers), v.Backup)
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "data-dir", "", "`directory` of a stopped server")
	f.StringArrayVar(&servers, "with", nil, "`ID=ADDRESS` of a server of the new configuration (repeatable)")
	f.BoolVar(&yes, "yes", false, "accept that acknowledged writes can be lost")
	return cmd
}

func newStateCmd(a *App) *cobra.Command {
	var dir, at, table string
	cmd := &cobra.Command{
		Use:   "state --data-dir DIR [--at POINT]",
		Short: "Show the state of a stopped server, now or at a point in its past",
		Long: `Replay the snapshot and the log of a stopped server (or of a copy of its data
directory) up to a point and print the rows as JSON, one a line, without
secrets. POINT is a revision (1234), an index of the log (index:1234) or a time
(2026-11-30T12:00:00Z); it must not lie before the oldest snapshot. The
directory is not changed.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usage("--data-dir is not set").WithHint("give the data directory of a stopped server, or a copy of it")
			}
			point, err := parsePoint(at)
			if err != nil {
				return err
			}
			ctx, cancel := a.timeoutOr(cmd.Context(), snapshotTime)
			defer cancel()
			root, err := recover.State(ctx, dir, point)
			if err != nil {
				return errs.New(codes.FailedPrecondition, "STATE_UNREADABLE", "%w", err).WithHint("the server must not run; a copy of its directory will do")
			}
			digest := root.Digest()
			a.Printer().Notef("revision %d, index %d of term %d, %s, digest %x", root.Revision(), root.Position().Index, root.Position().Term,
				time.Unix(0, root.Meta().GetTime()).UTC().Format(time.RFC3339Nano), digest)
			return printRows(a.Out, root, table)
		},
	}
	f := cmd.Flags()
	f.StringVar(&dir, "data-dir", "", "`directory` of a stopped server")
	f.StringVar(&at, "at", "", "`point` in its past: a revision, index:N, or a time (default: its end)")
	f.StringVar(&table, "table", "", "only this `table`")
	return cmd
}

func parsePoint(at string) (replica.At, error) {
	if at == "" {
		return replica.At{}, nil
	}
	if rest, ok := strings.CutPrefix(at, "index:"); ok {
		if n, err := strconv.ParseUint(rest, 10, 64); err == nil && n > 0 {
			return replica.At{Index: n}, nil
		}
	} else if n, err := strconv.ParseUint(at, 10, 64); err == nil && n > 0 {
		return replica.At{Revision: n}, nil
	} else if t, err := time.Parse(time.RFC3339, at); err == nil {
		return replica.At{Time: t}, nil
	}
	return replica.At{}, usage("--at %q is no point in time", at).WithHint("give a revision (1234), index:1234 or a time such as 2026-11-30T12:00:00Z")
}

// printRows prints the rows of a state, or of one table, as JSON lines.
func printRows(w io.Writer, root *fsm.Root, table string) error {
	for _, e := range fsm.Diff(nil, root) {
		if e.Op != fsm.Put || e.Table == fsm.TableMeta {
			continue
		}
		name := e.Table.String()
		if table != "" && name != table {
			continue
		}
		row, err := protojson.Marshal(operatorapi.Redacted(e.New))
		if err != nil {
			return fmt.Errorf("print %s %s: %w", name, e.Key, err)
		}
		if _, err := fmt.Fprintf(w, "{\"table\":%q,\"key\":%q,\"row\":%s}\n", name, e.Key, row); err != nil {
			return err
		}
	}
	return nil
}
