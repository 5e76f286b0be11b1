package names

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"

	"trivet/proto/telepresence/manager"
)

// Type is the type of a DNS record (RFC 1035, 3596, 2782).
type Type uint16

// The types that are answered.
const (
	A     = Type(dnsmessage.TypeA)
	NS    = Type(dnsmessage.TypeNS)
	CNAME = Type(dnsmessage.TypeCNAME)
	PTR   = Type(dnsmessage.TypePTR)
	MX    = Type(dnsmessage.TypeMX)
	TXT   = Type(dnsmessage.TypeTXT)
	AAAA  = Type(dnsmessage.TypeAAAA)
	SRV   = Type(dnsmessage.TypeSRV)
)

// Response codes (RFC 1035).
const (
	Success        = int32(dnsmessage.RCodeSuccess)
	ServerFailure  = int32(dnsmessage.RCodeServerFailure)
	NameError      = int32(dnsmessage.RCodeNameError)
	NotImplemented = int32(dnsmessage.RCodeNotImplemented)
)

// ttl is how long answers may be kept, seconds; it is that of the published
// manager.
const ttl = 4

// maxName is the longest name in its textual form with a dot at its end.
const maxName = 255

// maxText is the longest string of a TXT record.
const maxText = 255

// ValidName says whether a name is fully qualified: what follows ends with a dot
// and has labels of 1 to 63 bytes.
func ValidName(name string) bool {
	if len(name) < 2 || len(name) > maxName || !strings.HasSuffix(name, ".") {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(name, "."), ".") {
		if label == "" || len(label) > 63 {
			return false
		}
	}
	return true
}

// records collects the records of one answer. Their names are that of the
// question, whatever was looked up.
type records struct {
	b     dnsmessage.Builder
	head  dnsmessage.ResourceHeader
	n     int
	error error
}

// header is the size of the head of a message, which answers come without.
const header = 12

func newRecords(name string) (*records, error) {
	n, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	r := &records{b: dnsmessage.NewBuilder(nil, dnsmessage.Header{}), head: dnsmessage.ResourceHeader{Name: n, Class: dnsmessage.ClassINET, TTL: ttl}}
	return r, r.b.StartAnswers()
}

// add adds a record unless one before it could not be.
func (r *records) add(f func() error) {
	if r.error == nil {
		r.error = f()
		r.n++
	}
}

func (r *records) addr(ip netip.Addr) {
	if ip.Is4() {
		r.add(func() error { return r.b.AResource(r.head, dnsmessage.AResource{A: ip.As4()}) })
		return
	}
	r.add(func() error { return r.b.AAAAResource(r.head, dnsmessage.AAAAResource{AAAA: ip.As16()}) })
}

// named adds a record that holds a name.
func (r *records) named(host string, f func(dnsmessage.Name) error) {
	r.add(func() error {
		n, err := dnsmessage.NewName(dotted(host))
		if err != nil {
			return fmt.Errorf("name %q: %w", host, err)
		}
		return f(n)
	})
}

func (r *records) cname(host string) {
	r.named(host, func(n dnsmessage.Name) error { return r.b.CNAMEResource(r.head, dnsmessage.CNAMEResource{CNAME: n}) })
}

func (r *records) ptr(host string) {
	r.named(host, func(n dnsmessage.Name) error { return r.b.PTRResource(r.head, dnsmessage.PTRResource{PTR: n}) })
}

func (r *records) ns(host string) {
	r.named(host, func(n dnsmessage.Name) error { return r.b.NSResource(r.head, dnsmessage.NSResource{NS: n}) })
}

func (r *records) mx(mx *net.MX) {
	r.named(mx.Host, func(n dnsmessage.Name) error {
		return r.b.MXResource(r.head, dnsmessage.MXResource{Pref: mx.Pref, MX: n})
	})
}

func (r *records) srv(s *net.SRV) {
	r.named(s.Target, func(n dnsmessage.Name) error {
		return r.b.SRVResource(r.head, dnsmessage.SRVResource{Priority: s.Priority, Weight: s.Weight, Port: s.Port, Target: n})
	})
}

func (r *records) txt(text string) {
	var parts []string
	for len(text) > maxText {
		parts, text = append(parts, text[:maxText]), text[maxText:]
	}
	parts = append(parts, text)
	r.add(func() error { return r.b.TXTResource(r.head, dnsmessage.TXTResource{TXT: parts}) })
}

// response is what was collected as the contract carries it: records in wire
// form one behind the other, uncompressed, without a message around them.
func (r *records) response() (*manager.DNSResponse, error) {
	if r.error != nil {
		return nil, r.error
	}
	msg, err := r.b.Finish()
	if err != nil {
		return nil, err
	}
	if len(msg) < header {
		return nil, errors.New("a DNS message without a header")
	}
	return &manager.DNSResponse{RCode: Success, Rrs: msg[header:]}, nil
}

func dotted(host string) string {
	if strings.HasSuffix(host, ".") {
		return host
	}
	return host + "."
}
