package sim

import "time"

// Shrink looks for the shortest beginning of a failing run's faults with which
// it still fails, and returns that run: the faults after it had no part in the
// failure. If none fails with fewer, it is the run itself.
func (g *Rig) Shrink(o Options, failed Result) (Options, Result) {
	low, high := 0, failed.Faults // high fails
	if failed.At < o.chaos() {
		// While faults go on, the failure is looked for up to where it was.
		o.until = failed.At + time.Second
	}
	best, result := o, failed
	for low < high {
		try := o
		try.Faults = (low + high) / 2
		if try.Faults == 0 {
			try.Faults = -1
		}
		r := g.Run(try)
		if r.Failure == "" {
			low = (low+high)/2 + 1
			continue
		}
		high = (low + high) / 2
		best, result = try, r
	}
	best.until = 0
	return best, result
}
