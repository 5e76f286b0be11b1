package workload

import (
	"io/fs"
	"syscall"
)

// inode tells a file from one that was renamed over it within the same tick of
// the clock. The value is only good for comparison.
func inode(st fs.FileInfo) any {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Ino
	}
	return nil
}
