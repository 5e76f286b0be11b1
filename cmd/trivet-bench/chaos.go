package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trivet/test/chaos"
)

// chaosRun is the subcommand that disturbs a cluster. Its exit status is 0 only
// for a run that was judged and clean.
func chaosRun(output, exe *string) *cobra.Command {
	o := chaos.Options{Duration: 15 * time.Minute}
	keep := false
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Disturb three servers under load and judge what clients saw",
		Long: "Start three servers in network namespaces, let clients work, and make faults of a seeded\n" +
			"schedule happen: " + strings.Join(chaos.Kinds(), ", ") + ".\n" +
			"Needs root, and for the faults of disk and clock a trivet that was built with\n" +
			"-tags " + chaos.Tags + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Exe, err = trivet(*exe); err != nil {
				return err
			}
			if o.Seed == 0 {
				o.Seed = rand.Uint64()
			}
			if o.Replay != "" && !cmd.Flags().Changed("duration") {
				o.Duration = 0 // to the end of the schedule
			}
			temporary := o.Dir == ""
			if temporary {
				if o.Dir, err = os.MkdirTemp("", "trivet-chaos-"); err != nil {
					return err
				}
			}
			o.Progress = os.Stderr
			fmt.Fprintf(os.Stderr, "seed %d, directory %s\n", o.Seed, o.Dir)
			res, err := chaos.Execute(cmd.Context(), o)
			if err != nil {
				return fmt.Errorf("seed %d, directory %s: %w", o.Seed, o.Dir, err)
			}
			if *output == "json" {
				err = res.JSON(os.Stdout)
			} else {
				res.Text(os.Stdout)
			}
			switch {
			case err != nil:
				return err
			case !res.Clean():
				return errors.New("the run was not clean")
			case temporary && !keep:
				return os.RemoveAll(o.Dir)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Duration, "duration", o.Duration, "how long faults come")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of schedule, load and network (default: a fresh one)")
	f.StringSliceVar(&o.Faults, "faults", nil, "kinds of faults to draw from (default: all)")
	f.StringVar(&o.Replay, "replay", "", "follow the schedule.jsonl of an earlier run; give its --seed too")
	f.StringVar(&o.Dir, "dir", "", "directory of the run; kept (default: a temporary one, kept when the run is not clean)")
	f.BoolVar(&keep, "keep", false, "keep the temporary directory of a clean run too")
	f.StringVar(&o.Plant, "plant", "", "deliberate bug of servers that were built with -tags "+chaos.PlantedTags)
	_ = f.MarkHidden("plant")
	return cmd
}
