package client

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// ReasonNobodyListens: no process takes connections on a local port.
const ReasonNobodyListens = "NOBODY_LISTENS"

// probeTimeout bounds one look at a local port.
const probeTimeout = 500 * time.Millisecond

// CheckListener reports whether a process takes connections at the local end
// of spec. The error has a hint. It connects and hangs up at once, which the
// process may log.
func CheckListener(ctx context.Context, spec InterceptSpec) error {
	target := spec.target()
	if accepts(ctx, target) {
		return nil
	}
	e := errs.New(codes.FailedPrecondition, ReasonNobodyListens, "nothing listens on %s", target)
	v6 := netip.AddrPortFrom(netip.IPv6Loopback(), target.Port())
	if target.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && accepts(ctx, v6) {
		return e.WithHint("a process listens on %s only; let it listen on 127.0.0.1 too", v6)
	}
	return e.WithHint("%s", nobodyListensHint(target))
}

// AwaitListener waits until a process takes connections at the local end of
// spec, or ctx ends: then the error is that of CheckListener.
func AwaitListener(ctx context.Context, spec InterceptSpec) error {
	target := spec.target()
	for {
		if accepts(ctx, target) {
			return nil
		}
		timer := time.NewTimer(startPoll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errs.New(codes.FailedPrecondition, ReasonNobodyListens, "nothing listens on %s yet", target).
				WithHint("check that the command listens on port %s", strconv.Itoa(int(target.Port())))
		}
	}
}

func accepts(ctx context.Context, target netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.String())
	if err != nil {
		return false
	}
	_ = conn.Close() // it served its purpose
	return true
}
