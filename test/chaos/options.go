package chaos

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"trivet/internal/fault"
)

// Options of a Run.
type Options struct {
	// Exe is the trivet binary; see Tags for what it should be built with.
	Exe string
	// Dir receives logs, schedule and history; it must be empty or missing.
	Dir string
	// Seed decides schedule, load and network.
	Seed uint64
	// Duration is how long faults come. A run takes a little longer.
	Duration time.Duration
	// Faults names the kinds to draw from; empty: all that are possible.
	Faults []string
	// Replay is a schedule to follow instead of drawing one; Duration then only
	// ends it earlier, 0: not.
	Replay string
	// Plant is a deliberate bug of the servers (internal/fault.Bug).
	Plant string
	// Progress is told what happens, nil: nobody.
	Progress io.Writer
}

// Tags are the build tags of a server that can be disturbed from inside, and
// PlantedTags those of one that has the deliberate bugs too.
const (
	Tags        = "chaos"
	PlantedTags = "chaos,planted"
)

// Kinds lists the names of all kinds of faults.
func Kinds() []string {
	var out []string
	for _, k := range kinds() {
		out = append(out, k.name)
	}
	return out
}

// Possible says why no run is possible for this process, nil if one is.
func Possible() error {
	if os.Geteuid() != 0 {
		return errors.New("a chaos run makes network namespaces and mounts, which needs root")
	}
	if err := unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("a chaos run needs TUN devices: /dev/net/tun: %w", err)
	}
	return nil
}

func (o Options) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.Exe == "" {
		bad("no trivet binary is given")
	}
	if o.Dir == "" {
		bad("no directory is given")
	}
	if o.Duration <= 0 && o.Replay == "" {
		bad("the duration %s is not positive", o.Duration)
	}
	for _, name := range o.Faults {
		if !slices.Contains(Kinds(), name) {
			bad("there is no fault %q; there are %s", name, strings.Join(Kinds(), ", "))
		}
	}
	return errors.Join(problems...)
}

// chosen are the kinds to draw from; left are those that the binary cannot be
// disturbed by.
func (o Options) chosen() (chosen []kind, left []string, err error) {
	able, err := builtFor(o.Exe)
	if err != nil {
		return nil, nil, err
	}
	for _, k := range kinds() {
		switch {
		case len(o.Faults) > 0 && !slices.Contains(o.Faults, k.name):
		case k.hooks && !able:
			left = append(left, k.name)
		default:
			chosen = append(chosen, k)
		}
	}
	if len(chosen) == 0 {
		return nil, left, fmt.Errorf("no fault is left: %s needs a server built with -tags %s", strings.Join(left, ", "), Tags)
	}
	return chosen, left, nil
}

// builtFor says whether a binary has the tag of fault.Enabled.
func builtFor(exe string) (bool, error) {
	info, err := buildinfo.ReadFile(exe)
	if err != nil {
		return false, fmt.Errorf("look at the binary %s: %w", exe, err)
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" {
			return slices.Contains(strings.Split(s.Value, ","), Tags), nil
		}
	}
	return false, nil
}

// knownBug says whether there is such a deliberate bug.
func knownBug(name string) bool {
	return name == "" || slices.Contains([]fault.Bug{
		fault.AckBeforeCommit, fault.StaleRead, fault.EarlyExpiry, fault.SkippedEvent, fault.DoubleApply,
	}, fault.Bug(name))
}
