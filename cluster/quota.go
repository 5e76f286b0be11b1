package cluster

import "math"

// unbounded turns "no bound" into a number that is never reached.
func unbounded(n int) int {
	if n < 0 {
		return math.MaxInt32
	}
	return n
}
