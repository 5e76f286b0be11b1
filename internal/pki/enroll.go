package pki

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// ALPNEnroll is the protocol of connections over which certificates are asked
// for. A server lets peers in that have no certificate, or one that ended not
// long ago; nothing else is served there.
const ALPNEnroll = "trivet-enroll/1"

// RootHashLen is the length of a root's hash in a token, in bytes.
const RootHashLen = 16

// RefreshWindow is for how long after its end a certificate of role still gets
// the next one: machines that were switched off over a holiday come back by
// themselves, laptops that slept over a weekend too. Operators may do most and
// get least. A debug certificate is never renewed.
func RefreshWindow(role Role) time.Duration {
	switch role {
	case RoleServer, RoleNode, RoleAgent:
		return 7 * 24 * time.Hour
	case RoleClient, RoleViewer:
		return 72 * time.Hour
	case RoleOperator:
		return 24 * time.Hour
	default:
		return 0
	}
}

// Renewable tells whether certificates of role are renewed at all.
func Renewable(role Role) bool { return role != RoleDebug }

// RootHash names a root by its key: the first bytes of the SHA-256 of its
// public key info. A new certificate for the same key keeps it.
func RootHash(root *x509.Certificate) []byte {
	sum := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	return sum[:RootHashLen]
}

// enrollConfig is the configuration of ALPNEnroll at a server. The chain ends
// with the roots, because a peer that joins knows but the hash of one. Sessions
// are not resumed: there is nothing to come back for.
func enrollConfig(src *Source, b *Bundle) (*tls.Config, error) {
	roots, err := parseCerts(b.rootPEM, RootFile)
	if err != nil {
		return nil, err
	}
	cert := b.cert
	cert.Certificate = slices.Clone(b.cert.Certificate)
	for _, r := range roots {
		cert.Certificate = append(cert.Certificate, r.Raw)
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{ALPNEnroll},
		Time:                   src.now,
		ClientAuth:             tls.RequestClientCert,
		SessionTicketsDisabled: true,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return nil
			}
			return verifyRenewing(cs.PeerCertificates, b, src.now())
		},
	}, nil
}

// divertEnroll makes choose give hellos for ALPNEnroll a configuration of their
// own.
func divertEnroll(src *Source, choose func(*tls.ClientHelloInfo) (*tls.Config, error)) func(*tls.ClientHelloInfo) (*tls.Config, error) {
	type perBundle struct {
		bundle *Bundle
		conf   *tls.Config
	}
	var cache atomic.Pointer[perBundle]
	return func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if !slices.Contains(hello.SupportedProtos, ALPNEnroll) {
			return choose(hello)
		}
		b := src.Bundle()
		c := cache.Load()
		if c == nil || c.bundle != b {
			conf, err := enrollConfig(src, b)
			if err != nil {
				return nil, err
			}
			c = &perBundle{bundle: b, conf: conf}
			cache.Store(c)
		}
		return c.conf, nil
	}
}

// verifyRenewing is verifyPeer for a peer that wants its next certificate: the
// old one may have ended within its role's window.
func verifyRenewing(certs []*x509.Certificate, b *Bundle, now time.Time) error {
	leaf := certs[0]
	id, err := CertID(leaf)
	if err != nil {
		return err
	}
	at := now
	if now.After(leaf.NotAfter) && now.Sub(leaf.NotAfter) <= RefreshWindow(id.Role) {
		// Its issuing CA ends no earlier, so this is a moment at which all was
		// well.
		at = leaf.NotAfter
	}
	if err := verifyChain(certs, b.roots, x509.ExtKeyUsageClientAuth, at); err != nil {
		return err
	}
	if leaf.IsCA {
		return errs.New(codes.Unauthenticated, ReasonInvalid, "%s is a CA", owner(leaf)).
			WithHint("use a leaf certificate")
	}
	if id.Cluster != b.ID.Cluster {
		return errs.New(codes.Unauthenticated, ReasonWrongCluster,
			"%s belongs to cluster %q, this is %q", owner(leaf), id.Cluster, b.ID.Cluster).
			WithHint("use a bundle of cluster %s", b.ID.Cluster)
	}
	return nil
}

// EnrollConfig returns a configuration to dial a server with when nothing is
// known of its cluster but the hash of its root. The server sends the root
// along; only a chain that leads to a root with that hash, with dates, usage
// and role, is accepted.
//
// InsecureSkipVerify turns off only what crypto/tls would do with host names
// and system roots; VerifyConnection does the verifying.
func EnrollConfig(rootHash []byte, now func() time.Time) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         []string{ALPNEnroll},
		Time:               now,
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyByRootHash(cs.PeerCertificates, rootHash, now())
		},
	}
}

func verifyByRootHash(certs []*x509.Certificate, rootHash []byte, now time.Time) error {
	if len(certs) == 0 {
		return noCertificate()
	}
	at := slices.IndexFunc(certs, func(c *x509.Certificate) bool {
		return c.IsCA && subtle.ConstantTimeCompare(RootHash(c), rootHash) == 1
	})
	if at < 0 {
		return errs.New(codes.Unauthenticated, ReasonForeignCA,
			"the server is not of the cluster that the token is for (root %s)", hex.EncodeToString(rootHash)).
			WithHint("check the address; a token is good for the cluster that made it only")
	}
	roots := x509.NewCertPool()
	roots.AddCert(certs[at])
	if err := verifyChain(certs, roots, x509.ExtKeyUsageServerAuth, now); err != nil {
		return err
	}
	id, err := CertID(certs[0])
	if err != nil {
		return err
	}
	cluster, err := caCluster(certs[at])
	if err != nil {
		return err
	}
	if id.Cluster != cluster || id.Role != RoleServer {
		return errs.New(codes.PermissionDenied, ReasonWrongRole, "%s is not that of a server of %q", owner(certs[0]), cluster).
			WithHint("check the address: something other than a server answers there")
	}
	return nil
}
