package pki

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Names of the files in a bundle directory.
const (
	// RootFile holds the root certificate; two while roots change.
	RootFile = "ca.crt"
	// ChainFile holds the leaf and the issuing CA, in this order.
	ChainFile = "tls.crt"
	// KeyFile holds the leaf's private key, PKCS #8.
	KeyFile = "tls.key"
)

const (
	bundleExistsHint = "choose another directory, or remove the old bundle first if nothing uses it"
	bundleHint       = "the bundle is incomplete or damaged: put the files of a newly issued one there"
)

// Bundle is all that a process needs to prove who it is and to check others:
// leaf, chain, key and the cluster's root. It never changes.
type Bundle struct {
	// ID is the identity of the leaf.
	ID ID
	// NotBefore and NotAfter limit the time in which the whole chain that is
	// sent to peers is valid.
	NotBefore, NotAfter time.Time

	dir     string // empty: not on disk
	warning string
	rootPEM []byte
	keyPEM  []byte
	chain   []*x509.Certificate
	cert    tls.Certificate
	roots   *x509.CertPool
}

// ParseBundle makes a bundle of PEM data and checks that the parts belong
// together: the key matches, the chain leads to the root, the leaf has an
// identity. It does not compare dates with a clock; see ValidAt.
func ParseBundle(rootPEM, chainPEM, keyPEM []byte) (*Bundle, error) {
	return parseBundle(rootPEM, chainPEM, keyPEM, "")
}

func parseBundle(rootPEM, chainPEM, keyPEM []byte, dir string) (*Bundle, error) {
	rootName := filepath.Join(dir, RootFile)
	chainName := filepath.Join(dir, ChainFile)
	keyName := filepath.Join(dir, KeyFile)
	rootCerts, err := parseCerts(rootPEM, rootName)
	if err != nil {
		return nil, withHint(err, bundleHint)
	}
	chain, err := parseCerts(chainPEM, chainName)
	if err != nil {
		return nil, withHint(err, bundleHint)
	}
	key, err := parseKey(keyPEM, keyName)
	if err != nil {
		return nil, withHint(err, bundleHint)
	}
	if !keyFits(chain[0], key) {
		return nil, errs.New(codes.FailedPrecondition, ReasonKeyMismatch,
			"%s does not belong to the first certificate in %s", keyName, chainName).
			WithHint("the two files come from different bundles: put key and certificate of one bundle there")
	}
	b := &Bundle{
		dir: dir, rootPEM: rootPEM, keyPEM: keyPEM, chain: chain, roots: x509.NewCertPool(),
		NotBefore: chain[0].NotBefore, NotAfter: chain[0].NotAfter,
	}
	if b.ID, err = CertID(chain[0]); err != nil {
		return nil, err
	}
	for _, c := range rootCerts {
		b.roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		if c.NotAfter.Before(b.NotAfter) {
			b.NotAfter = c.NotAfter
		}
		if c.NotBefore.After(b.NotBefore) {
			b.NotBefore = c.NotBefore
		}
	}
	// At its last moment, so that an expired bundle still loads: the one who
	// renews it needs it.
	if err := verifyChain(chain, b.roots, x509.ExtKeyUsageClientAuth, b.NotAfter); err != nil {
		return nil, err
	}
	b.cert = tlsCertificate(chain, key)
	return b, nil
}

func tlsCertificate(chain []*x509.Certificate, key *ecdsa.PrivateKey) tls.Certificate {
	c := tls.Certificate{PrivateKey: key, Leaf: chain[0]}
	for _, x := range chain {
		c.Certificate = append(c.Certificate, x.Raw)
	}
	return c
}

// LoadBundle reads the bundle in dir and checks it as ParseBundle does. A
// replacement that a crash cut short is completed.
func LoadBundle(dir string) (*Bundle, error) {
	data := map[string][]byte{}
	for _, name := range []string{RootFile, ChainFile, KeyFile} {
		b, err := readFile(dir, name, "no complete bundle is there: give the directory of one, or issue one")
		if err != nil {
			return nil, err
		}
		data[name] = b
	}
	b, err := parseBundle(data[RootFile], data[ChainFile], data[KeyFile], dir)
	if errs.Reason(err) == ReasonKeyMismatch {
		b, err = completeReplace(dir, data[RootFile], data[ChainFile], err)
	}
	if err != nil {
		return nil, err
	}
	b.warning = keyWarning(filepath.Join(dir, KeyFile))
	return b, nil
}

// keyWarning says that others than the owner may read a private key.
func keyWarning(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm()&0o077 == 0 {
		return ""
	}
	return fmt.Sprintf("%s has mode %04o: others may read the private key in it; run: chmod 600 %s", path, info.Mode().Perm(), path)
}

// Write writes the bundle to dir, which it makes if need be. It refuses to
// replace any file of another bundle.
func (b *Bundle) Write(dir string) error {
	return writeNew(dir, bundleExistsHint, []file{
		{RootFile, b.rootPEM},
		{KeyFile, b.keyPEM},
		{ChainFile, encodeCerts(b.chain...)}, // last: with it the bundle is complete
	})
}

// ValidAt returns an error with ReasonExpired or ReasonNotYetValid, and a hint
// for the holder of the bundle, when peers would not take it at now.
func (b *Bundle) ValidAt(now time.Time) error {
	hint := renewHint(b.ID, b.dir)
	if err := checkDates(b.Leaf(), now, "your certificate ("+b.ID.String()+")", hint); err != nil {
		return err
	}
	for _, c := range b.chain[1:] {
		if err := checkDates(c, now, "the issuing CA of your certificate ("+b.ID.String()+")", hint); err != nil {
			return err
		}
	}
	return nil
}

// RenewAt is when the holder should ask for the next certificate: a third of
// the lifetime is left then, or of that of the certificate which it would get,
// if that is shorter: one that was issued for a year is not given up early for
// one of a day.
func (b *Bundle) RenewAt() time.Time {
	lifetime := min(b.NotAfter.Sub(b.NotBefore), DefaultTTL(b.ID.Role)+Skew)
	return b.NotAfter.Add(-lifetime / 3)
}

// Warning is a remark about the files of the bundle that whoever runs the
// process should see, or "".
func (b *Bundle) Warning() string { return b.warning }

// Leaf returns the leaf certificate; read only.
func (b *Bundle) Leaf() *x509.Certificate { return b.chain[0] }

// Certificate returns chain and key for crypto/tls; read only.
func (b *Bundle) Certificate() *tls.Certificate { return &b.cert }

// Roots returns the pool of trusted roots; read only.
func (b *Bundle) Roots() *x509.CertPool { return b.roots }

// RootPEM returns what RootFile holds; read only.
func (b *Bundle) RootPEM() []byte { return b.rootPEM }

// ChainPEM returns what ChainFile holds.
func (b *Bundle) ChainPEM() []byte { return encodeCerts(b.chain...) }
