package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ID names a network namespace for as long as it exists: two handles are of
// the same namespace exactly when their IDs are equal.
type ID struct {
	Dev, Ino uint64
}

// String returns the form the kernel shows in /proc/PID/ns, net:[INODE].
func (id ID) String() string { return fmt.Sprintf("net:[%d]", id.Ino) }

// Handle is an open network namespace. It keeps the namespace alive until
// Close. The zero value is not usable; make one with Open, FromFile, Current
// or New.
type Handle struct {
	file *os.File
	id   ID
}

// Open opens the namespace at path: a bind mount (/run/netns/NAME) or a
// process's own (/proc/PID/ns/net). It fails for a file that is no network
// namespace.
func Open(path string) (*Handle, error) { return open(path, path) }

func open(path, name string) (*Handle, error) {
	// O_NONBLOCK keeps a path that names a pipe or a device from blocking
	// here; it means nothing to a namespace.
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	return FromFile(os.NewFile(uintptr(fd), name))
}

// FromFile makes a Handle from a descriptor that another process handed over
// or that the caller opened itself. It owns the file from then on and closes
// it also when it fails.
func FromFile(f *os.File) (*Handle, error) {
	h, err := fromFile(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	return h, nil
}

func fromFile(f *os.File) (*Handle, error) {
	h := &Handle{file: f}
	err := h.withFD(func(fd int) error {
		kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
		if err != nil {
			return fmt.Errorf("not a namespace: %w", err)
		}
		if kind != unix.CLONE_NEWNET {
			return fmt.Errorf("a namespace of another kind (%#x)", kind)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("stat: %w", err)
		}
		h.id = ID{Dev: st.Dev, Ino: st.Ino}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", f.Name(), err)
	}
	return h, nil
}

// Current opens the namespace that ordinary goroutines of this process are in.
func Current() (*Handle, error) {
	// Not /proc/self: that is the first thread's view, which need not be ours.
	return open(threadPath, "current")
}

// New makes an empty namespace, reachable only through the Handle: it is gone
// once the Handle and every socket in it are closed.
func New() (*Handle, error) {
	var made *Handle
	err := onThread(func() (err error) {
		made, err = unshare()
		return err
	})
	if err != nil && made != nil {
		made.Close()
		made = nil
	}
	return made, err
}

// unshare makes a namespace on the calling thread, which must be locked, and
// goes back; the thread is unlocked unless there was no way back.
func unshare() (made *Handle, err error) {
	home, err := Current()
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("make a network namespace: %w", err)
	}
	made, err = open(threadPath, "unnamed")
	if back := home.set(); back != nil {
		return made, fmt.Errorf("return from a new network namespace: %w", back)
	}
	runtime.UnlockOSThread()
	return made, err
}

// ID returns what tells the namespace from every other.
func (h *Handle) ID() ID { return h.id }

// String returns the path the handle was opened by and the ID.
func (h *Handle) String() string { return fmt.Sprintf("%s (%v)", h.file.Name(), h.id) }

// WithFD calls fn with the namespace's descriptor, which stays open for the
// time of the call. fn must not close or keep it.
func (h *Handle) WithFD(fn func(fd int) error) error {
	if err := h.withFD(fn); err != nil {
		return fmt.Errorf("network namespace %s: %w", h.file.Name(), err)
	}
	return nil
}

// File returns a second descriptor of the namespace, for another process. The
// caller closes it.
func (h *Handle) File() (*os.File, error) {
	var dup *os.File
	err := h.WithFD(func(fd int) error {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("duplicate the descriptor: %w", err)
		}
		dup = os.NewFile(uintptr(n), h.file.Name())
		return nil
	})
	return dup, err
}

// Close lets go of the namespace. Sockets made in it stay usable.
func (h *Handle) Close() error { return h.file.Close() }

func (h *Handle) withFD(fn func(fd int) error) error {
	rc, err := h.file.SyscallConn()
	if err != nil {
		return err
	}
	var fnErr error
	if err := rc.Control(func(fd uintptr) { fnErr = fn(int(fd)) }); err != nil {
		// The one reason there is, said by an error that callers can test for.
		return os.ErrClosed
	}
	return fnErr
}
