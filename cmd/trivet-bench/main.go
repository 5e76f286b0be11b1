// Command trivet-bench measures trivet. It is not part of the product's image.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"trivet/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func root() *cobra.Command {
	cmd := &cobra.Command{Use: "trivet-bench", Short: "Measure trivet", SilenceUsage: true, SilenceErrors: true}
	var output, exe string
	cmd.PersistentFlags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.PersistentFlags().StringVar(&exe, "trivet", "", "the trivet binary (default: beside this one, then PATH)")
	cmd.AddCommand(failover(&output, &exe))
	return cmd
}

func failover(output, exe *string) *cobra.Command {
	rounds := 20
	dir := ""
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Time from the SIGKILL of the leader to the first acknowledged write",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			bin, err := trivet(*exe)
			if err != nil {
				return err
			}
			res, err := bench.Failover(cmd.Context(), bench.FailoverOptions{Exe: bin, Rounds: rounds, Dir: dir, Progress: os.Stderr})
			if err != nil {
				return err
			}
			return show(res, *output, os.Stdout)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "", "directory for data and logs; kept (default: a temporary one)")
	cmd.Flags().IntVar(&rounds, "rounds", rounds, "how often the leader is killed")
	return cmd
}

func show(r *bench.Result, output string, w io.Writer) error {
	switch output {
	case "json":
		return r.JSON(w)
	case "table":
		r.Table(w)
		return nil
	}
	return fmt.Errorf("unknown output %q: use table or json", output)
}

// trivet finds the binary to measure.
func trivet(flag string) (string, error) {
	if flag != "" {
		return filepath.Abs(flag)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "trivet")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path, err := exec.LookPath("trivet")
	if err != nil {
		return "", errors.New("find the trivet binary: run `make build`, or give --trivet")
	}
	return path, nil
}
