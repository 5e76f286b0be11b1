package client

import (
	"net/netip"
	"regexp"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// InterceptSpec says what to intercept and where its traffic goes.
type InterceptSpec struct {
	// Name is unique within the session: letters, digits, '.', '-', '_'.
	Name string
	// Workload and Namespace say whose traffic; an empty namespace is the
	// session's.
	Workload, Namespace string
	// LocalHost is the IP address that the local process listens on; empty
	// means 127.0.0.1.
	LocalHost string
	// LocalPort is the port that it listens on.
	LocalPort int
	// Port is the workload's port, a name or a number; empty means its only
	// one.
	Port string
	// Force displaces another intercept whose owner is away.
	Force bool
	// Lease ends the intercept after that time; 0 means with the session.
	Lease time.Duration
	// StartGrace is for a local process that is only started now: until it has
	// taken a connection, and for this long after the intercept became active,
	// connections that it does not take are tried again for as long as their
	// dialer waits.
	StartGrace time.Duration
}

var namePattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// Validate reports what can be known to be wrong without a manager.
func (i InterceptSpec) Validate() error {
	bad := func(format string, args ...any) *errs.Error {
		return errs.New(codes.InvalidArgument, ReasonBadSpec, format, args...)
	}
	switch {
	case !namePattern.MatchString(i.Name):
		return bad("intercept name %q is not valid", i.Name).
			WithHint("use 1 to 63 letters, digits, '.', '-' and '_'; begin and end with a letter or digit")
	case i.Workload == "":
		return bad("intercept %q: no workload", i.Name).
			WithHint("name one with --workload; trivet workload list shows what there is")
	case i.LocalPort < 1 || i.LocalPort > 65535:
		return bad("intercept %q: %d is not a port", i.Name, i.LocalPort).WithHint("ports are 1 to 65535")
	case i.Lease < 0:
		return bad("intercept %q: the time %s is negative", i.Name, i.Lease)
	}
	if i.LocalHost != "" {
		if _, err := netip.ParseAddr(i.LocalHost); err != nil {
			return bad("intercept %q: local host %q is not an IP address", i.Name, i.LocalHost)
		}
	}
	return nil
}

// target is the one address that the intercept lets others dial.
func (i InterceptSpec) target() netip.AddrPort {
	host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if addr, err := netip.ParseAddr(i.LocalHost); err == nil {
		host = addr.Unmap().WithZone("")
	}
	return netip.AddrPortFrom(host, uint16(i.LocalPort))
}
