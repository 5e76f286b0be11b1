package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
)

// resolveTimeout bounds one lookup; published clients wait 8 s for all of it.
const resolveTimeout = 4 * time.Second

// Lookups are what a Resolver needs of a *net.Resolver.
type Lookups interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupAddr(ctx context.Context, addr string) ([]string, error)
	LookupCNAME(ctx context.Context, host string) (string, error)
	LookupMX(ctx context.Context, name string) ([]*net.MX, error)
	LookupNS(ctx context.Context, name string) ([]*net.NS, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
	LookupTXT(ctx context.Context, name string) ([]string, error)
}

// Scope is where a question comes from.
type Scope struct {
	// Namespace of the client; empty: of no one.
	Namespace string
	// Domain of the cluster, with a dot at its end.
	Domain string
	// Workload returns the addresses of a workload's pods.
	Workload func(namespace, name string) []netip.Addr
}

// Resolver answers from the server's own resolver.
type Resolver struct{ lookups Lookups }

// NewResolver makes a Resolver; nil means the system's.
func NewResolver(l Lookups) *Resolver {
	if l == nil {
		// Not a part of the answer when a server has failed.
		l = &net.Resolver{StrictErrors: true}
	}
	return &Resolver{lookups: l}
}

// errUnsupported: records of that type cannot be asked for.
var errUnsupported = errors.New("records of that type are not looked up")

// Query answers a question. name is valid. A name that is not there is no error
// but the response code NameError; an error is one of Failure's.
func (r *Resolver) Query(ctx context.Context, scope Scope, name string, t Type) (*manager.DNSResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var last error
	for _, candidate := range scope.candidates(name) {
		out, err := r.one(ctx, scope, name, candidate, t)
		if err == nil {
			return out, nil
		}
		if errors.Is(err, errUnsupported) || ctx.Err() != nil {
			return nil, err
		}
		// What failed says more than what is not there.
		if last == nil || isNotFound(last) {
			last = err
		}
	}
	if isNotFound(last) {
		return &manager.DNSResponse{RCode: NameError}, nil
	}
	return nil, last
}

// candidates are the names that are looked up for one that was asked for, as the
// published manager has them: a single label is meant in the client's namespace,
// and one of several may be.
func (s Scope) candidates(name string) []string {
	if s.Namespace == "" {
		return []string{name}
	}
	within := name + s.Namespace + "."
	switch {
	case strings.Count(name, ".") == 1:
		return []string{within, name}
	case strings.HasSuffix(name, "."+s.Domain), strings.HasSuffix(name, "."+s.Namespace+"."), strings.HasSuffix(name, ".arpa."):
		return []string{name}
	}
	return []string{name, within}
}

// one looks a name up and answers under the name of the question.
func (r *Resolver) one(ctx context.Context, scope Scope, asked, name string, t Type) (*manager.DNSResponse, error) {
	rec, err := newRecords(asked)
	if err != nil {
		return nil, err
	}
	switch t {
	case A, AAAA:
		ips, err := r.addresses(ctx, scope, name)
		if err != nil {
			return nil, err
		}
		// A name that has addresses of the other kind only is there, and has no
		// record of this one.
		for _, ip := range ips {
			if ip.Is4() == (t == A) {
				rec.addr(ip)
			}
		}
	case PTR:
		ip, ok := reverse(name)
		if !ok {
			return nil, &net.DNSError{Err: "no address", Name: name, IsNotFound: true}
		}
		hosts, err := r.lookups.LookupAddr(ctx, ip.String())
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			rec.ptr(h)
		}
	case CNAME:
		host, err := r.lookups.LookupCNAME(ctx, name)
		if err != nil {
			return nil, err
		}
		rec.cname(host)
	case MX:
		list, err := r.lookups.LookupMX(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, mx := range list {
			rec.mx(mx)
		}
	case NS:
		list, err := r.lookups.LookupNS(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, ns := range list {
			rec.ns(ns.Host)
		}
	case SRV:
		_, list, err := r.lookups.LookupSRV(ctx, "", "", name)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			rec.srv(s)
		}
	case TXT:
		list, err := r.lookups.LookupTXT(ctx, name)
		if err != nil {
			return nil, err
		}
		for _, text := range list {
			rec.txt(text)
		}
	default:
		return nil, fmt.Errorf("type %d: %w", t, errUnsupported)
	}
	return rec.response()
}

// Addresses are those of a name; none when it is not there.
func (r *Resolver) Addresses(ctx context.Context, scope Scope, name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var last error
	for _, candidate := range scope.candidates(name) {
		ips, err := r.addresses(ctx, scope, candidate)
		if err == nil {
			return ips, nil
		}
		if last == nil || isNotFound(last) {
			last = err
		}
	}
	if isNotFound(last) {
		return nil, nil
	}
	return nil, last
}

// addresses asks the resolver, and the registry of workloads for what it does
// not know: outside of Kubernetes nobody else knows their names.
func (r *Resolver) addresses(ctx context.Context, scope Scope, name string) ([]netip.Addr, error) {
	ips, err := r.lookups.LookupNetIP(ctx, "ip", name)
	if err != nil {
		if own := scope.workload(name); len(own) > 0 && isNotFound(err) {
			return own, nil
		}
		return nil, err
	}
	for i, ip := range ips {
		ips[i] = ip.Unmap().WithZone("")
	}
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips), nil
}

// workload are the addresses of a workload that is asked for as
// NAME.NAMESPACE., or with ".svc." and the cluster's domain behind it.
func (s Scope) workload(name string) []netip.Addr {
	if s.Workload == nil {
		return nil
	}
	rest := strings.TrimSuffix(name, ".")
	if s.Domain != "" {
		rest = strings.TrimSuffix(rest, "."+strings.TrimSuffix(s.Domain, "."))
	}
	parts := strings.Split(strings.TrimSuffix(rest, ".svc"), ".")
	if len(parts) != 2 {
		return nil
	}
	return s.Workload(parts[1], parts[0])
}

// reverse reads the address of a PTR question.
func reverse(name string) (netip.Addr, bool) {
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	n := len(labels)
	if n < 2 || !strings.EqualFold(labels[n-1], "arpa") {
		return netip.Addr{}, false
	}
	digits := labels[:n-2]
	slices.Reverse(digits)
	switch {
	case strings.EqualFold(labels[n-2], "in-addr") && len(digits) == 4:
		ip, err := netip.ParseAddr(strings.Join(digits, "."))
		return ip, err == nil && ip.Is4()
	case strings.EqualFold(labels[n-2], "ip6") && len(digits) == 32:
		var b strings.Builder
		for i, d := range digits {
			if len(d) != 1 {
				return netip.Addr{}, false
			}
			if i > 0 && i%4 == 0 {
				b.WriteByte(':')
			}
			b.WriteString(d)
		}
		ip, err := netip.ParseAddr(b.String())
		return ip, err == nil
	}
	return netip.Addr{}, false
}

func isNotFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

// Failure says as the contract does why a question has no answer: its code for
// older peers and its response code for newer ones.
func Failure(err error) (response int32, status error) {
	var dns *net.DNSError
	isDNS := errors.As(err, &dns)
	switch {
	case errors.Is(err, errUnsupported):
		return NotImplemented, errs.New(codes.Unimplemented, "DNS_TYPE", "%w", err)
	case isDNS && dns.IsTimeout, errors.Is(err, context.DeadlineExceeded):
		return ServerFailure, errs.New(codes.DeadlineExceeded, "DNS_TIMEOUT", "%w", err).WithHint("does the server's resolver answer?")
	case isDNS && dns.IsTemporary, errors.Is(err, context.Canceled):
		return ServerFailure, errs.New(codes.Unavailable, "DNS_FAILED", "%w", err).WithHint("does the server's resolver answer?")
	}
	return ServerFailure, errs.New(codes.Internal, "DNS_FAILED", "%w", err)
}
