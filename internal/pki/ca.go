package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Lifetimes of the certificates of a CA.
const (
	// RootTTL is the lifetime of a root.
	RootTTL = 10 * 365 * 24 * time.Hour
	// IssuingTTL is the lifetime of an issuing CA, which bounds that of every
	// leaf.
	IssuingTTL = 365 * 24 * time.Hour
	// issuingRenewal is how long before its end the issuing CA wants to be
	// renewed: no leaf that renews by itself lives longer than a week, so a
	// quarter leaves an operator time.
	issuingRenewal = 90 * 24 * time.Hour
)

// Names of the files in a CA directory.
const (
	caRootCert    = "root.crt"
	caRootKey     = "root.key"
	caIssuingCert = "issuing.crt"
	caIssuingKey  = "issuing.key"
)

const (
	caExistsHint = "a second CA would lock out every bundle of the first: choose another directory, " +
		"or remove the old CA first if nothing uses it"
	caMissingHint = "give the directory that trivet ca init made"
)

// CA issues the certificates of one cluster: a root that signs only issuing
// CAs, and the issuing CA that signs leaves. It never changes.
type CA struct {
	// Cluster is the trust domain of everything the CA issues.
	Cluster string

	root       *x509.Certificate
	issuing    *x509.Certificate
	issuingKey *ecdsa.PrivateKey
}

// InitCA makes a CA for cluster and writes it to dir, which must not hold one.
// The caller should tell the user to take root.key off line.
func InitCA(dir, cluster string, now time.Time) (*CA, error) {
	if err := ValidateCluster(cluster); err != nil {
		return nil, err
	}
	rootKey, err := newKey()
	if err != nil {
		return nil, err
	}
	issuingKey, err := newKey()
	if err != nil {
		return nil, err
	}
	rootTmpl := caTemplate(cluster, "trivet root CA", now, RootTTL)
	rootTmpl.MaxPathLen = 1
	root, err := sign(rootTmpl, rootTmpl, &rootKey.PublicKey, rootKey)
	if err != nil {
		return nil, err
	}
	issuing, err := newIssuing(cluster, root, rootKey, &issuingKey.PublicKey, now)
	if err != nil {
		return nil, err
	}
	rootKeyPEM, err := encodeKey(rootKey)
	if err != nil {
		return nil, err
	}
	issuingKeyPEM, err := encodeKey(issuingKey)
	if err != nil {
		return nil, err
	}
	err = writeNew(dir, caExistsHint, []file{
		{caRootKey, rootKeyPEM},
		{caRootCert, encodeCerts(root)},
		{caIssuingKey, issuingKeyPEM},
		{caIssuingCert, encodeCerts(issuing)},
	})
	if err != nil {
		return nil, err
	}
	return &CA{Cluster: cluster, root: root, issuing: issuing, issuingKey: issuingKey}, nil
}

// newIssuing makes the certificate of an issuing CA. It never outlives its
// root.
func newIssuing(
	cluster string, root *x509.Certificate, rootKey *ecdsa.PrivateKey, pub *ecdsa.PublicKey, now time.Time,
) (*x509.Certificate, error) {
	tmpl := caTemplate(cluster, "trivet issuing CA", now, IssuingTTL)
	tmpl.MaxPathLenZero = true
	if err := checkDates(root, now, "the root", "make a new cluster's CA: trivet ca init"); err != nil {
		return nil, err
	}
	if tmpl.NotAfter.After(root.NotAfter) {
		tmpl.NotAfter = root.NotAfter
	}
	return sign(tmpl, root, pub, rootKey)
}

// LoadCA reads the CA in dir. It does not need the root key. Dates are checked
// when the CA issues.
func LoadCA(dir string) (*CA, error) {
	read := func(name string) ([]byte, error) { return readFile(dir, name, caMissingHint) }
	one := func(name string) (*x509.Certificate, error) {
		data, err := read(name)
		if err != nil {
			return nil, err
		}
		certs, err := parseCerts(data, filepath.Join(dir, name))
		if err != nil {
			return nil, withHint(err, caMissingHint)
		}
		return certs[0], nil
	}
	root, err := one(caRootCert)
	if err != nil {
		return nil, err
	}
	issuing, err := one(caIssuingCert)
	if err != nil {
		return nil, err
	}
	data, err := read(caIssuingKey)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(data, filepath.Join(dir, caIssuingKey))
	if err != nil {
		return nil, withHint(err, caMissingHint)
	}
	if !keyFits(issuing, key) {
		// CommitIssuing was cut short: the key is the next one's already.
		if next, err := one(caNextCert); err == nil && keyFits(next, key) {
			if err := CommitIssuing(dir); err != nil {
				return nil, err
			}
			issuing = next
		}
	}
	if !keyFits(issuing, key) {
		return nil, errs.New(codes.FailedPrecondition, ReasonKeyMismatch,
			"%s does not belong to %s in %s", caIssuingKey, caIssuingCert, dir).
			WithHint("the files come from different CAs: restore them from one copy")
	}
	if err := issuing.CheckSignatureFrom(root); err != nil {
		return nil, errs.New(codes.FailedPrecondition, ReasonForeignCA,
			"%s in %s was not signed by %s: %w", caIssuingCert, dir, caRootCert, err).
			WithHint("the files come from different CAs: restore them from one copy")
	}
	cluster, err := caCluster(root)
	if err != nil {
		return nil, err
	}
	return &CA{Cluster: cluster, root: root, issuing: issuing, issuingKey: key}, nil
}

// RootPEM returns the root certificate, for the bundles of others.
func (ca *CA) RootPEM() []byte { return encodeCerts(ca.root) }

// NotAfter is when the issuing CA, and with it everything it issued, ends.
func (ca *CA) NotAfter() time.Time { return ca.issuing.NotAfter }

// RenewAt is when the issuing CA should be renewed: 90 days before its end.
func (ca *CA) RenewAt() time.Time { return ca.issuing.NotAfter.Add(-issuingRenewal) }

// caTemplate describes a CA certificate. The cluster is in it as a SPIFFE
// trust domain, a URI without path, which no leaf can have.
func caTemplate(cluster, name string, now time.Time, ttl time.Duration) *x509.Certificate {
	return &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{cluster}, CommonName: name},
		URIs:                  []*url.URL{{Scheme: "spiffe", Host: cluster}},
		NotBefore:             now.Add(-Skew),
		NotAfter:              now.Add(ttl),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

func caCluster(root *x509.Certificate) (string, error) {
	if !root.IsCA || len(root.URIs) != 1 || root.URIs[0].Scheme != "spiffe" || root.URIs[0].Path != "" {
		return "", unusable("root certificate names no cluster").WithHint("%s", caMissingHint)
	}
	cluster := root.URIs[0].Host
	if err := ValidateCluster(cluster); err != nil {
		return "", err
	}
	return cluster, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, unusable("generate key: %w", err)
	}
	return key, nil
}

func sign(tmpl, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	// A nil serial number makes crypto/x509 draw one of 159 random bits.
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		return nil, unusable("sign certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, unusable("parse new certificate: %w", err)
	}
	return cert, nil
}

func withHint(err error, hint string) error {
	e := errs.From(err)
	if e.Hint != "" {
		return e
	}
	return e.WithHint("%s", hint)
}
