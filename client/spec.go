package client

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
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
	// Further are more ports of the workload's pods, each with its own port here.
	Further []FurtherPort
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

// FurtherPort leads one more port of a pod to a local one.
type FurtherPort struct {
	// Local is the port that the local process listens on.
	Local int
	// Remote is the pod's port, a name or a number, with "/UDP" if that is what it
	// is.
	Remote string
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
	for _, p := range i.Further {
		switch {
		case p.Local < 1 || p.Local > 65535:
			return bad("intercept %q: %d is not a port", i.Name, p.Local).WithHint("ports are 1 to 65535")
		case p.Remote == "":
			return bad("intercept %q: a further port needs the name or number of the workload's", i.Name).
				WithHint("for example 9001:admin")
		}
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

// podPorts are the further ports as the contract writes them:
// PORT:LOCAL[/PROTOCOL].
func (i InterceptSpec) podPorts() []string {
	var out []string
	for _, p := range i.Further {
		port, protocol, named := strings.Cut(p.Remote, "/")
		text := fmt.Sprintf("%s:%d", port, p.Local)
		if named {
			text += "/" + protocol
		}
		out = append(out, text)
	}
	return out
}

// takes tells whether connections to an address, by a protocol, may be asked of
// the intercept; main is the protocol of its main port.
func (i InterceptSpec) takes(to netip.AddrPort, protocol, main string) bool {
	target := i.target()
	if to.Addr() != target.Addr() {
		return false
	}
	if to.Port() == target.Port() && strings.EqualFold(protocol, main) {
		return true
	}
	return slices.ContainsFunc(i.Further, func(p FurtherPort) bool {
		_, want, named := strings.Cut(p.Remote, "/")
		if !named {
			want = "TCP"
		}
		return int(to.Port()) == p.Local && strings.EqualFold(protocol, want)
	})
}
