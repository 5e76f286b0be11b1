package steal

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// FileCount is how many descriptors Files has.
const FileCount = 5

// Files are the descriptors that make a Worker in another process. They can
// travel as exec.Cmd.ExtraFiles or over a unix socket; List and FilesFrom fix
// their order. Whoever holds a Files closes it.
//
// All are close-on-exec in the process that made them. The listener stays
// non-blocking on the way: the flag belongs to the open socket, and a process
// that cleared it would clear it for all.
type Files struct {
	Namespace, Listener, Ports, Beat, Stats *os.File
}

// List returns the descriptors in their fixed order.
func (f Files) List() []*os.File {
	return []*os.File{f.Namespace, f.Listener, f.Ports, f.Beat, f.Stats}
}

// FilesFrom is the reverse of List.
func FilesFrom(list []*os.File) (Files, error) {
	if len(list) != FileCount {
		return Files{}, fmt.Errorf("steal needs %d descriptors, got %d", FileCount, len(list))
	}
	return Files{
		Namespace: list[0], Listener: list[1], Ports: list[2], Beat: list[3], Stats: list[4],
	}, nil
}

// Close closes the descriptors that are set.
func (f Files) Close() error { return closeFiles(f.List()) }

// HandoverCount is how many descriptors Handover has.
const HandoverCount = FileCount + 1

// Handover is everything an Attachment owns, for a holder that re-executes
// itself. Nobody else may have Link: who has it keeps the program attached.
type Handover struct {
	Files
	Link *os.File
}

// List returns the descriptors in their fixed order, those of Files first.
func (h Handover) List() []*os.File { return append(h.Files.List(), h.Link) }

// HandoverFrom is the reverse of List.
func HandoverFrom(list []*os.File) (Handover, error) {
	if len(list) != HandoverCount {
		return Handover{}, fmt.Errorf("steal needs %d descriptors, got %d", HandoverCount, len(list))
	}
	files, err := FilesFrom(list[:FileCount])
	return Handover{Files: files, Link: list[FileCount]}, err
}

// Close closes the descriptors that are set.
func (h Handover) Close() error { return closeFiles(h.List()) }

func closeFiles(list []*os.File) error {
	var errs []error
	for _, f := range list {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// dup returns a second descriptor of what c has open, without touching the
// flags of what is open. (The File methods of net connections give a file that
// turns the open socket into a blocking one, for all processes, as soon as its
// Fd is asked for.)
func dup(c syscall.Conn) (int, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var n int
	var dupErr error
	if err := rc.Control(func(fd uintptr) {
		n, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	return n, dupErr
}

// listenerFile returns a second descriptor of a listener.
func listenerFile(ln *net.TCPListener) (*os.File, error) {
	fd, err := dup(ln)
	if err != nil {
		return nil, fmt.Errorf("duplicate listener: %w", err)
	}
	return os.NewFile(uintptr(fd), "steal listener"), nil
}

// rawFile returns a second descriptor of fd.
func rawFile(fd int, name string) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate %s: %w", name, err)
	}
	return os.NewFile(uintptr(n), name), nil
}

// release takes the descriptor out of f, which is closed.
func release(f *os.File) (int, error) {
	if f == nil {
		return -1, errors.New("descriptor is missing")
	}
	defer f.Close()
	return dup(f)
}

// adoptListener makes a listener of a descriptor.
func adoptListener(f *os.File) (*net.TCPListener, error) {
	if f == nil {
		return nil, errors.New("descriptor is missing")
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := ln.(*net.TCPListener)
	if !ok {
		ln.Close()
		return nil, fmt.Errorf("listener is of %s, want TCP", ln.Addr().Network())
	}
	return tcp, nil
}
