package steal

import (
	"context"
	"net"
	"net/netip"
)

// Names of the backends, as status shows them.
const (
	// NameSkLookup is the Worker's.
	NameSkLookup = "sk_lookup"
	// NameProxy is the Proxy's.
	NameProxy = "proxy"
)

// Port is what an agent needs of a backend to steal from one pod.
type Port interface {
	// Listener gives the stolen connections. Their LocalAddr is the original
	// destination. It is the same listener at every call; closing it ends the
	// stealing of this Port.
	Listener() net.Listener
	// Arm starts stealing new connections of the key. Arming twice is no
	// error.
	Arm(Key) error
	// Disarm stops stealing new connections of the key. Those stolen before
	// may still come from Listener. Disarming what is not armed is no error.
	Disarm(Key) error
	// ArmedKeys returns what is armed, in no order, also by a process before
	// this one.
	ArmedKeys() ([]Key, error)
	// DialApp connects to the app that would have had a connection to dst.
	// Such a connection is never stolen.
	DialApp(ctx context.Context, dst netip.AddrPort) (net.Conn, error)
}

// Backend is a Port with what the process that owns it needs.
type Backend interface {
	Port
	// Name is one of the names above.
	Name() string
	// Beat says that the process serves now. While it is not called for
	// Options.StaleAfter, new connections go to the app.
	Beat() error
	// Stats returns what became of connections so far.
	Stats() (Stats, error)
	// Close ends the use of the backend in this process.
	Close() error
}

var (
	_ Backend = (*Worker)(nil)
	_ Backend = (*Proxy)(nil)
)

// OriginalDst returns the address that the visitor of a stolen connection
// dialled, or the zero AddrPort when the connection is not TCP.
func OriginalDst(c net.Conn) netip.AddrPort {
	a, ok := c.LocalAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := a.AddrPort()
	// A listener for both families gives IPv4 addresses in their mapped form.
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
