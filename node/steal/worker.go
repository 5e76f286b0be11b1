package steal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"trivet/internal/netns"
)

// Worker is the traffic process's side of an attachment. Several processes can
// each have one for the same attachment, as during an upgrade: they share the
// armed keys, and every connection goes to one of those that accept.
type Worker struct {
	ns       *netns.Handle
	listener *stolenListener
	ports    table
	beat     *Beat
	stats    *bpfMap
	// v4only: the listener cannot take IPv6.
	v4only bool
}

// Adopt makes a Worker of descriptors from the holder. It owns the files, also
// when it fails.
func Adopt(f Files) (*Worker, error) {
	w := &Worker{}
	if err := w.adopt(f); err != nil {
		f.Close()
		w.Close()
		return nil, fmt.Errorf("adopt attachment: %w", err)
	}
	return w, nil
}

func (w *Worker) adopt(f Files) (err error) {
	if f.Namespace == nil {
		return errors.New("descriptor of the namespace is missing")
	}
	if w.ns, err = netns.FromFile(f.Namespace); err != nil {
		return err
	}
	ln, err := adoptListener(f.Listener)
	if err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	w.listener = &stolenListener{TCPListener: ln, own: ln.Addr().(*net.TCPAddr).AddrPort().Port()}
	if w.v4only, err = isV4Only(ln); err != nil {
		return fmt.Errorf("listener: %w", err)
	}
	if w.ports.m, err = adoptPorts(f.Ports); err != nil {
		return fmt.Errorf("armed keys: %w", err)
	}
	w.listener.armed = w.ports.has
	if w.beat, err = AdoptBeat(f.Beat); err != nil {
		return err
	}
	if w.stats, err = adoptStats(f.Stats); err != nil {
		return fmt.Errorf("statistics: %w", err)
	}
	return nil
}

// Name implements Backend.
func (w *Worker) Name() string { return NameSkLookup }

// Listener implements Port.
func (w *Worker) Listener() net.Listener { return w.listener }

// Arm implements Port. It fails with ErrNoIPv6 for an IPv6 key where the
// listener takes only IPv4, and with ErrTooManyKeys.
func (w *Worker) Arm(k Key) error {
	k, err := k.canonical()
	if err != nil {
		return fmt.Errorf("arm: %w", err)
	}
	if w.v4only && !k.Addr.Is4() {
		return fmt.Errorf("arm %v: %w", k, ErrNoIPv6)
	}
	return w.ports.arm(k)
}

// Disarm implements Port.
func (w *Worker) Disarm(k Key) error {
	k, err := k.canonical()
	if err != nil {
		return fmt.Errorf("disarm: %w", err)
	}
	return w.ports.disarm(k)
}

// ArmedKeys implements Port.
func (w *Worker) ArmedKeys() ([]Key, error) { return w.ports.keys() }

// DialApp implements Port, see the function of that name.
func (w *Worker) DialApp(ctx context.Context, dst netip.AddrPort) (net.Conn, error) {
	return DialApp(ctx, w.ns, dst)
}

// Beat implements Backend. It is the heartbeat of the whole process: one call
// serves all Workers whose attachments were made with the same Beat.
func (w *Worker) Beat() error { return w.beat.Write() }

// Stats implements Backend.
func (w *Worker) Stats() (Stats, error) {
	s, err := readStats(w.stats)
	s.Direct = w.listener.direct.Load()
	return s, err
}

// Close closes this process's descriptors and nothing else: keys stay armed
// for whoever adopts next, and connections that were accepted go on.
func (w *Worker) Close() error {
	var errs []error
	if w.listener != nil {
		if err := w.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, w.ports.m.close(), w.stats.close())
	if w.beat != nil {
		errs = append(errs, w.beat.Close())
	}
	if w.ns != nil {
		if err := w.ns.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close worker: %w", err)
	}
	return nil
}

// stolenListener gives stolen connections only.
type stolenListener struct {
	*net.TCPListener
	// own is the port that the listener itself has in the namespace.
	own    uint16
	armed  func(Key) bool
	direct atomic.Uint64
}

// Accept waits for a stolen connection. Connections that somebody made to the
// listener's own port are closed: that port serves nothing.
func (l *stolenListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		dst := OriginalDst(c)
		if dst.Port() != l.own || l.armed(TCPKey(dst)) {
			return c, nil
		}
		l.direct.Add(1)
		c.Close()
	}
}

// isV4Only tells whether a listener cannot take IPv6.
func isV4Only(ln *net.TCPListener) (bool, error) {
	rc, err := ln.SyscallConn()
	if err != nil {
		return false, err
	}
	var domain int
	var optErr error
	if err := rc.Control(func(fd uintptr) {
		domain, optErr = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
	}); err != nil {
		return false, err
	}
	return domain == unix.AF_INET, optErr
}

func adoptPorts(f *os.File) (*bpfMap, error) { return adoptMap(f, ebpf.Hash, keySize, 4) }

func adoptStats(f *os.File) (*bpfMap, error) {
	return adoptMap(f, ebpf.Array, 4, kernelStatsSize)
}
