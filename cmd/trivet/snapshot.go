package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/cluster/archive"
	"trivet/internal/chunks"
	"trivet/internal/errs"
	"trivet/internal/render"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// snapshotTime is what saving or restoring a snapshot may take by default.
const snapshotTime = 5 * time.Minute

func newSnapshotSaveCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "save FILE",
		Short: "Save the whole state to a new file",
		Long: `Save the state as a linearizable read sees it. What is secret in it is sealed:
the file is of no use without the keyring of the servers, which is in their
bundles and data directories and not in the file.`,
		Args: oneArg("the FILE to make"),
		RunE: a.askFor(snapshotTime, func(q query) error {
			stream, err := q.api.SaveSnapshot(q.ctx, &operatorv1.SaveSnapshotRequest{})
			if err != nil {
				return err
			}
			n := &counter{}
			err = writeNewFile(q.args[0], io.TeeReader(chunks.Reader(func() ([]byte, error) {
				c, err := stream.Recv()
				return c.GetData(), err
			}), n))
			if err != nil {
				return err
			}
			v := map[string]any{"file": q.args[0], "bytes": n.n}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "%s (%s)\n", q.args[0], render.Bytes(n.n))
				return err
			})
		}),
	}
}

// restoredView is what a restore brought back.
type restoredView struct {
	Revision     uint64 `json:"revision"`
	RestoreEpoch uint64 `json:"restoreEpoch"`
	Sessions     uint64 `json:"sessions"`
	Intercepts   uint64 `json:"intercepts"`
}

func newSnapshotRestoreCmd(a *App) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Replace the whole state by that of a file",
		Long: `Replace the state of the cluster by that of a snapshot. The file is checked as a
whole before anything changes. Writes that are under way fail; orders from
before are refused by nodes afterwards; sessions get a full period.`,
		Args: oneArg("the FILE of a snapshot"),
		RunE: a.askFor(snapshotTime, func(q query) error {
			if !yes {
				return usage("restoring replaces everything that the cluster holds").WithHint("say --yes if that is meant")
			}
			f, err := os.Open(q.args[0])
			if err != nil {
				return fmt.Errorf("read the snapshot: %w", err)
			}
			defer f.Close()
			stream, err := q.api.RestoreSnapshot(q.ctx)
			if err != nil {
				return err
			}
			err = chunks.Copy(func(p []byte) error { return stream.Send(&operatorv1.SnapshotChunk{Data: p}) }, f)
			// A stream that the server has ended: its answer says why.
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("send the snapshot: %w", err)
			}
			r, err := stream.CloseAndRecv()
			if err != nil {
				return err
			}
			v := restoredView{r.GetRevision(), r.GetRestoreEpoch(), r.GetSessions(), r.GetIntercepts()}
			return render.Object(a.Printer(), v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "restored: revision %d, %d sessions, %d intercepts\n", v.Revision, v.Sessions, v.Intercepts)
				return err
			})
		}),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "replace everything that the cluster holds")
	return cmd
}

// rowsView is the number of rows of one table.
type rowsView struct {
	Table string `json:"table"`
	Rows  int    `json:"rows"`
}

func newSnapshotInspectCmd(a *App) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect FILE",
		Short: "Check a snapshot as a whole and say what is in it; needs no server",
		Args:  oneArg("the FILE of a snapshot"),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("read the snapshot: %w", err)
			}
			defer f.Close()
			s, err := archive.Open(f)
			if err != nil {
				return errs.New(codes.DataLoss, "SNAPSHOT_DAMAGED", "%s: %w", args[0], err).WithHint("use another snapshot")
			}
			m := s.Meta
			p := a.Printer()
			if p.Format.Structured() {
				return render.Object(p, m, nil)
			}
			var rows []rowsView
			for _, t := range slices.Sorted(maps.Keys(m.Rows)) {
				rows = append(rows, rowsView{t, m.Rows[t]})
			}
			p.Notef("cluster %s at revision %d, saved by %s (%s) at %s, %s, restore epoch %d", m.ClusterID, m.Revision, render.Clean(m.Server),
				render.Clean(m.Version), m.CreatedAt.UTC().Format(time.RFC3339), render.Bytes(uint64(m.StateBytes)), m.RestoreEpoch)
			return render.List(p, rows, 0, "tables", []render.Column[rowsView]{
				{Name: "TABLE", Value: func(v rowsView) string { return v.Table }},
				{Name: "ROWS", Value: func(v rowsView) string { return strconv.Itoa(v.Rows) }},
			})
		},
	}
}

type counter struct{ n uint64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += uint64(len(p))
	return len(p), nil
}
