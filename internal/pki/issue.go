package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// maxCSR bounds a signing request; one for a P-256 key has about 500 bytes.
const maxCSR = 8 << 10

// DefaultTTL is how long a leaf of role lives when its holder can renew it
// without a restart: 7 days for servers, a day for nodes and agents, 12 hours
// for people, an hour for debug.
func DefaultTTL(role Role) time.Duration {
	switch role {
	case RoleServer:
		return 7 * 24 * time.Hour
	case RoleNode, RoleAgent:
		return 24 * time.Hour
	case RoleDebug:
		return time.Hour
	default:
		return 12 * time.Hour
	}
}

// Template describes a leaf.
type Template struct {
	// ID is the identity; its cluster must be the CA's.
	ID ID
	// TTL is the lifetime from now on; 0 means DefaultTTL of the role.
	TTL time.Duration
	// DNS and IPs are host names for people and for browsers. trivet itself
	// never looks at them.
	DNS []string
	IPs []net.IP
}

// Issue makes a key and a certificate for it.
func (ca *CA) Issue(t Template, now time.Time) (*Bundle, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	chainPEM, err := ca.sign(t, &key.PublicKey, now)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return ParseBundle(ca.RootPEM(), chainPEM, keyPEM)
}

// SignCSR makes a certificate for the key that signed a PEM request, and
// returns leaf and issuing CA as PEM. The request proves possession of the key
// and nothing more: names in it are ignored, t alone says who it is for.
func (ca *CA) SignCSR(csrPEM []byte, t Template, now time.Time) ([]byte, error) {
	pub, err := parseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	return ca.sign(t, pub, now)
}

// CSRKeyDigest checks a PEM request as SignCSR does and returns the SHA-256 of
// the public key in it, by which two requests of one key are known.
func CSRKeyDigest(csrPEM []byte) ([]byte, error) {
	pub, err := parseCSR(csrPEM)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return nil, unusable("encode public key: %w", err)
	}
	sum := sha256.Sum256(der)
	return sum[:], nil
}

// parseCSR returns the key that a request is for and proves to have.
func parseCSR(csrPEM []byte) (*ecdsa.PublicKey, error) {
	badCSR := func(format string, args ...any) error {
		return errs.New(codes.InvalidArgument, ReasonInvalid, format, args...).
			WithHint("send a PEM certificate request for an ECDSA P-256 key")
	}
	if len(csrPEM) > maxCSR {
		return nil, badCSR("certificate request is %d bytes long, at most %d are taken", len(csrPEM), maxCSR)
	}
	block, _ := pem.Decode(csrPEM)
	if block == nil || block.Type != pemCSR {
		return nil, badCSR("certificate request holds no PEM block %q", pemCSR)
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, badCSR("parse certificate request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, badCSR("check signature of certificate request: %w", err)
	}
	pub, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, badCSR("certificate request is not for an ECDSA P-256 key")
	}
	return pub, nil
}

// NewCSR makes a key and a request for it, both PEM. Keep the key; with it and
// what SignCSR answers, ParseBundle makes a bundle.
func NewCSR() (csrPEM, keyPEM []byte, err error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, err
	}
	csrPEM, err = requestFor(key)
	return csrPEM, keyPEM, err
}

// requestFor makes a PEM request for a key.
func requestFor(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, unusable("make certificate request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der}), nil
}

func (ca *CA) sign(t Template, pub *ecdsa.PublicKey, now time.Time) ([]byte, error) {
	if err := t.ID.Validate(); err != nil {
		return nil, err
	}
	if t.ID.Cluster != ca.Cluster {
		return nil, errs.New(codes.InvalidArgument, ReasonWrongCluster,
			"issue certificate for %s: this is the CA of cluster %q", t.ID, ca.Cluster).
			WithHint("ask for spiffe://%s/%s/%s", ca.Cluster, t.ID.Role, t.ID.Name)
	}
	end, err := ca.leafEnd(t, now)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{ca.Cluster}, CommonName: commonName(t.ID)},
		URIs:                  []*url.URL{t.ID.URI()},
		DNSNames:              t.DNS,
		IPAddresses:           t.IPs,
		NotBefore:             now.Add(-Skew),
		NotAfter:              end,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if t.ID.Role.serves() {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	leaf, err := sign(tmpl, ca.issuing, pub, ca.issuingKey)
	if err != nil {
		return nil, err
	}
	return encodeCerts(leaf, ca.issuing), nil
}

// leafEnd is when the leaf that t asks for ends. A leaf never outlives its CA.
func (ca *CA) leafEnd(t Template, now time.Time) (time.Time, error) {
	if err := checkDates(ca.issuing, now, "the issuing CA", "renew it: trivet ca rotate"); err != nil {
		return time.Time{}, err
	}
	ttl := t.TTL
	if ttl == 0 {
		ttl = DefaultTTL(t.ID.Role)
	}
	left := ca.issuing.NotAfter.Sub(now)
	if ttl < 0 || ttl > left+Skew {
		return time.Time{}, errs.New(codes.InvalidArgument, ReasonLifetime,
			"issue certificate for %s: a lifetime of %s is not within that of the issuing CA, which ends at %s",
			t.ID, ttl, stamp(ca.issuing.NotAfter)).
			WithHint("ask for at most %s, or renew the issuing CA: trivet ca rotate", left.Truncate(time.Minute))
	}
	// A bundle made for as long as the CA, moments after the CA, loses these
	// moments and nobody cares.
	return now.Add(min(ttl, left)), nil
}

// commonName is what people see in tools that show only that; the identity is
// the URI. X.509 allows 64 bytes.
func commonName(id ID) string {
	if s := string(id.Role) + "/" + id.Name; len(s) <= 64 {
		return s
	}
	return string(id.Role)
}
