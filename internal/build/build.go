// Package build says which build this is.
package build

import "runtime/debug"

// Version is set by the linker; a build without it says "devel".
var Version = "devel"

// commit is set by the linker; without it the go command's own record counts.
var commit string

// Commit is the revision of the source, or "unknown".
func Commit() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return "unknown"
}
