package netns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// NamesDir is where iproute2 looks for namespaces by name.
const NamesDir = "/run/netns"

// Bind gives the namespace a name: a path below NamesDir that keeps it alive,
// that `ip netns` shows and that Open takes, also in another process. It needs
// CAP_SYS_ADMIN. An existing name is an error.
func (h *Handle) Bind(name string) (path string, err error) {
	path = filepath.Join(NamesDir, name)
	if err := os.MkdirAll(NamesDir, 0o755); err != nil {
		return "", fmt.Errorf("name network namespace %s: %w", name, err)
	}
	if err := shareNamesDir(); err != nil {
		return "", fmt.Errorf("name network namespace %s: %w", name, err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return "", fmt.Errorf("name network namespace %s: %w", name, err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("name network namespace %s: %w", name, err)
	}
	err = h.WithFD(func(fd int) error {
		return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), path, "", unix.MS_BIND, "")
	})
	if err != nil {
		return "", errors.Join(fmt.Errorf("name network namespace %s: %w", name, err), os.Remove(path))
	}
	return path, nil
}

// Unbind removes a name. The namespace goes once nobody is in it or holds it.
func Unbind(name string) error {
	path := filepath.Join(NamesDir, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) {
		err = nil // killed between creating the file and binding it
	}
	if err := errors.Join(err, os.Remove(path)); err != nil {
		return fmt.Errorf("remove the name of network namespace %s: %w", name, err)
	}
	return nil
}

// shareNamesDir makes NamesDir a shared mount, as iproute2 does before it adds
// its first name. If that were left to it, its mount would cover the names that
// are there by then, and nobody could remove them any more.
func shareNamesDir() error {
	dir, err := os.Open(NamesDir)
	if err != nil {
		return err
	}
	// The lock, which iproute2 takes too, ends with the descriptor.
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", NamesDir, err)
	}
	share := func() error { return unix.Mount("none", NamesDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		if err = unix.Mount(NamesDir, NamesDir, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", NamesDir, err)
	}
	return nil
}
