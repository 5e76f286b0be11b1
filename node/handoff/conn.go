package handoff

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	// maxPacket bounds a message. The kernel's own bound is higher by default.
	maxPacket = 128 << 10
	// MaxFiles is how many descriptors one message can carry; the kernel takes
	// 253.
	MaxFiles = 128
)

// conn sends and receives messages with descriptors.
type conn struct {
	c *net.UnixConn

	send sync.Mutex // one packet at a time

	buf, oob []byte // of the one goroutine that receives
}

// Pair makes the two ends: one for a Server here, one to be inherited by the
// traffic process. The caller closes the file once the process has started.
func Pair() (*Server, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket to the traffic process: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "holder socket")
	c, err := newConn(os.NewFile(uintptr(fds[0]), "traffic socket"))
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return newServer(c), theirs, nil
}

// newConn owns f, also when it fails.
func newConn(f *os.File) (*conn, error) {
	defer f.Close()
	nc, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open socket between holder and traffic process: %w", err)
	}
	uc, ok := nc.(*net.UnixConn)
	if !ok {
		nc.Close()
		return nil, fmt.Errorf("open socket between holder and traffic process: it is a %T", nc)
	}
	return &conn{c: uc, buf: make([]byte, maxPacket+1), oob: make([]byte, unix.CmsgSpace(4*MaxFiles))}, nil
}

// write sends a message. The files stay the caller's.
func (c *conn) write(m *message, files []*os.File) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("send %s: %w", m.Kind, err)
	}
	if len(data) > maxPacket || len(files) > MaxFiles {
		return fmt.Errorf("send %s: %d bytes with %d descriptors are more than %d and %d",
			m.Kind, len(data), len(files), maxPacket, MaxFiles)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			if fds[i], err = descriptor(f); err != nil {
				return fmt.Errorf("send %s: %w", m.Kind, err)
			}
		}
		oob = unix.UnixRights(fds...)
	}
	c.send.Lock()
	defer c.send.Unlock()
	if _, _, err := c.c.WriteMsgUnix(data, oob, nil); err != nil {
		return fmt.Errorf("send %s: %w", m.Kind, err)
	}
	return nil
}

// descriptor returns the number of an open file without making it blocking,
// as File.Fd would. The caller keeps the file open while it uses the number.
func descriptor(f *os.File) (int, error) {
	rc, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	err = rc.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// read waits for a message. Its files belong to the caller. The error is
// io.EOF when the other side is gone.
func (c *conn) read() (*message, []*os.File, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.buf, c.oob)
	if err != nil {
		if errors.Is(err, unix.ECONNRESET) {
			err = io.EOF
		}
		return nil, nil, err
	}
	files, err := parseFiles(c.oob[:oobn])
	if err == nil && n == 0 && len(files) == 0 {
		return nil, nil, io.EOF
	}
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("message was cut off")
	}
	m := &message{}
	if err == nil {
		err = json.Unmarshal(c.buf[:n], m)
	}
	if err != nil {
		closeAll(files)
		return nil, nil, fmt.Errorf("receive between holder and traffic process: %w", err)
	}
	return m, files, nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "handed over"))
		}
	}
	return files, nil
}

func (c *conn) close() error { return c.c.Close() }

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
