//go:build !planted

package fault

// Planted says whether this binary has the bug.
func Planted(Bug) bool { return false }
