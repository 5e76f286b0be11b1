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
	cmd.AddCommand(failover(&output, &exe), raft(&output, &exe), sessions(&output, &exe), watch(&output, &exe), chaosRun(&output, &exe))
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
