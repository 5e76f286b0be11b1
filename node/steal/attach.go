package steal

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/netns"
)

// Options of an attachment. The zero value is the usual one.
type Options struct {
	// StaleAfter is how old the heartbeat may be before connections go to the
	// app; zero means DefaultStaleAfter.
	StaleAfter time.Duration
	// AllowHost permits the machine's own network namespace, where a wildcard
	// key takes the port of every process of the machine.
	AllowHost bool
}

// Attachment is the kernel's side of stealing in one network namespace: a
// listener there, the program that steers to it, and the link that keeps the
// program in place. The holder owns it. Nothing is armed by it.
type Attachment struct {
	ns       *netns.Handle
	listener *net.TCPListener
	ports    table
	stats    *bpfMap
	beat     *Beat

	mu   sync.Mutex
	link link.Link // nil when closed; guarded by mu
}

// Attach makes the listener in the namespace and attaches the program. Neither
// ns nor beat passes into the attachment: the caller may close them once it
// returned. It refuses the machine's own namespace (ErrHostNetwork) unless the
// options allow it, and returns *ErrUnsupported when the machine cannot do it.
func Attach(ns *netns.Handle, beat *Beat, opts Options) (*Attachment, error) {
	if opts.StaleAfter == 0 {
		opts.StaleAfter = DefaultStaleAfter
	}
	if opts.StaleAfter < 0 {
		return nil, fmt.Errorf("attach to %v: negative StaleAfter %v", ns, opts.StaleAfter)
	}
	if !opts.AllowHost {
		if err := refuseHost(ns); err != nil {
			return nil, err
		}
	}
	a := &Attachment{}
	if err := a.attach(ns, beat, opts); err != nil {
		a.abandon()
		return nil, fmt.Errorf("attach to %v: %w", ns, err)
	}
	return a, nil
}

// attach fills a; the link comes last, so that the program never runs without
// a listener.
func (a *Attachment) attach(ns *netns.Handle, beat *Beat, opts Options) (err error) {
	f, err := ns.File()
	if err != nil {
		return err
	}
	if a.ns, err = netns.FromFile(f); err != nil {
		return err
	}
	if a.beat, err = beat.clone(); err != nil {
		return err
	}
	if a.listener, err = listen(a.ns); err != nil {
		return err
	}
	k, err := load(beat, opts.StaleAfter)
	if err != nil {
		return err
	}
	a.ports.m, a.stats = &bpfMap{m: k.Ports}, &bpfMap{m: k.Stats}
	// The program keeps its maps and the link will keep the program.
	defer k.Program.Close()
	defer k.Sockets.Close()
	rc, err := a.listener.SyscallConn()
	if err != nil {
		return err
	}
	var putErr error
	if err := rc.Control(func(fd uintptr) {
		putErr = k.Sockets.Put(listenerSlot, uint64(fd))
	}); err != nil {
		return err
	}
	if putErr != nil {
		return fmt.Errorf("give the listener to the program: %w", unsupported("sockmaps with listeners", putErr))
	}
	return a.ns.WithFD(func(fd int) error {
		l, err := link.AttachNetNs(fd, k.Program)
		if err != nil {
			return fmt.Errorf("attach steal program: %w", unsupported("sk_lookup links", err))
		}
		a.link = l
		return nil
	})
}

// listen makes the listener: one socket for both families, or for IPv4 alone
// where the kernel was started without IPv6.
func listen(ns *netns.Handle) (*net.TCPListener, error) {
	ln, err := netns.Listen(context.Background(), ns, "tcp", ":0")
	if errors.Is(err, unix.EAFNOSUPPORT) {
		ln, err = netns.Listen(context.Background(), ns, "tcp4", ":0")
	}
	return ln, unsupported("entering network namespaces", err)
}

// refuseHost returns an error when ns is the namespace of this process or of
// the machine's first one. Where the kernel hides the first process from this
// one (no CAP_SYS_PTRACE over it, hidepid), or shows it the first one of a
// container, only the former can be told; it is the machine's own wherever the
// node is deployed as documented.
func refuseHost(ns *netns.Handle) error {
	own, err := netns.Current()
	if err != nil {
		return fmt.Errorf("tell %v from the machine's own namespace: %w", ns, err)
	}
	defer own.Close()
	first, err := netns.Open("/proc/1/ns/net")
	switch {
	case err == nil && !amongAllProcesses():
		first.Close()
		first = own
	case err == nil:
		defer first.Close()
	case errors.Is(err, os.ErrPermission), errors.Is(err, os.ErrNotExist):
		first = own
	default:
		return fmt.Errorf("tell %v from the machine's own namespace: %w", ns, err)
	}
	if ns.ID() != own.ID() && ns.ID() != first.ID() {
		return nil
	}
	return errs.New(codes.FailedPrecondition, "HOST_NETWORK", "attach to %v: %w", ns, ErrHostNetwork).
		WithHint("set hostNetwork: true in the workload source to steal from the whole machine's ports")
}

// initialPIDNamespace is the inode of the machine's first process namespace,
// the same on all machines (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const initialPIDNamespace = "pid:[4026531836]"

// amongAllProcesses tells whether process 1 is the machine's first one, and not
// that of a container whose process namespace the node shares. When the kernel
// does not say, it is taken for the machine's.
func amongAllProcesses() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || ns == initialPIDNamespace
}

// Namespace returns which namespace it is.
func (a *Attachment) Namespace() netns.ID { return a.ns.ID() }

// ListenerAddr returns the address of the listener in the namespace. Nobody
// needs to connect to it; a Worker closes connections that were made to it.
func (a *Attachment) ListenerAddr() netip.AddrPort {
	return a.listener.Addr().(*net.TCPAddr).AddrPort()
}

// ArmedKeys returns what the traffic processes armed.
func (a *Attachment) ArmedKeys() ([]Key, error) { return a.ports.keys() }

// Stats returns what became of connections since Attach.
func (a *Attachment) Stats() (Stats, error) { return readStats(a.stats) }

// DisarmAll stops all stealing of new connections; a traffic process can arm
// again. The holder calls it when no traffic process will come.
func (a *Attachment) DisarmAll() error { return a.ports.clear() }

// Close gives the namespace back to its app: first nothing is armed, then the
// program is detached, then the listener closes. Connections that no traffic
// process accepted are reset by that, unless one still has the listener.
// Closing twice is an error and harmless.
func (a *Attachment) Close() error {
	errs := []error{a.DisarmAll(), a.detach(), a.listener.Close(), a.closeRest()}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close attachment to %v: %w", a.ns, err)
	}
	return nil
}

// detach closes the link.
func (a *Attachment) detach() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.link == nil {
		return nil
	}
	l := a.link
	a.link = nil
	return l.Close()
}

// closeRest closes what is left when link and listener are closed.
func (a *Attachment) closeRest() error {
	errs := []error{a.ports.m.close(), a.stats.close()}
	if a.beat != nil {
		errs = append(errs, a.beat.Close())
	}
	if a.ns != nil {
		errs = append(errs, a.ns.Close())
	}
	return errors.Join(errs...)
}

// abandon closes what a failed Attach or Resume had made; its own errors would
// only hide the first one.
func (a *Attachment) abandon() {
	_ = a.detach()
	if a.listener != nil {
		a.listener.Close()
	}
	_ = a.closeRest()
}
