package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"trivet/cluster"
	"trivet/internal/errs"
)

// checkTime is what the answer of a health check may take.
const checkTime = 2 * time.Second

// newServerCheckCmd asks a server on the same machine whether it is ready: for
// health checks where there is no other program.
func newServerCheckCmd(app *App) *cobra.Command {
	var admin string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Ask a server on this machine whether it is ready; exits 6 if it is not",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := app.timeoutOr(cmd.Context(), checkTime)
			defer cancel()
			return ready(ctx, app.Out, "http://"+admin+"/readyz")
		},
	}
	cmd.Flags().StringVar(&admin, "admin", cluster.DefaultAdmin, "`address` of the server's admin listener")
	return cmd
}

func ready(ctx context.Context, out io.Writer, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return usage("--admin is no address: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return errs.New(codes.Unavailable, "NOT_READY", "%w", err).WithHint("is the server running, and is that its admin address?")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return errs.New(codes.Unavailable, "NOT_READY", "read the answer: %w", err)
	}
	text := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return errs.New(codes.Unavailable, "NOT_READY", "the server is not ready: %s", text).WithHint("trivet doctor says more")
	}
	_, err = fmt.Fprintln(out, text)
	return err
}
