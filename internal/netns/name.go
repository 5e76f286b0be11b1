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
