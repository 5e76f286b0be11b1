package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// diskSource starts the source of our mounts, so that those that a killed run
// left can be told from others: the id of its process follows.
const diskSource = "trivet-chaos-"

// mountDisk makes a memory disk of a size in bytes.
func mountDisk(dir string, size int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the disk %s: %w", dir, err)
	}
	source := diskSource + strconv.Itoa(os.Getpid())
	if err := unix.Mount(source, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=0700", size)); err != nil {
		return fmt.Errorf("mount the disk %s: %w", dir, err)
	}
	return nil
}

// unmountDisk takes a disk away, with what is on it.
func unmountDisk(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount the disk %s: %w", dir, err)
	}
	return nil
}

// reapDisks removes the disks of runs that were killed.
func reapDisks() {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(raw)) {
		before, after, ok := strings.Cut(line, " - ")
		fields, tail := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(tail) < 2 {
			continue
		}
		pid, found := strings.CutPrefix(tail[1], diskSource)
		n, err := strconv.Atoi(pid)
		if !found || err != nil || !errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			continue
		}
		_ = unmountDisk(fields[4]) // another run may have been quicker
	}
}

// free is the number of bytes that are left on a disk.
func free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the disk %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// ballast is the file that fills a disk up.
const ballast = "ballast"

// fill leaves nothing of a disk.
func fill(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, ballast), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	defer f.Close()
	chunk := make([]byte, 64<<10)
	for len(chunk) > 0 {
		n, err := f.Write(chunk)
		switch {
		case errors.Is(err, unix.ENOSPC) && n == 0:
			chunk = chunk[:len(chunk)/2]
		case err != nil && !errors.Is(err, unix.ENOSPC):
			return fmt.Errorf("fill the disk: %w", err)
		}
	}
	return nil
}

// relieve takes the ballast away.
func relieve(dir string) error {
	if err := os.Remove(filepath.Join(dir, ballast)); err != nil {
		return fmt.Errorf("empty the disk: %w", err)
	}
	return nil
}
