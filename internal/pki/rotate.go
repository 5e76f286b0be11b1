package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Files of an issuing CA that was made and is not in use yet.
const (
	caNextCert = "issuing.next.crt"
	caNextKey  = "issuing.next.key"
)

// ParseCA makes a CA of PEM data: trusted roots, of which one has signed the
// issuing CA, the issuing CA and its key. Dates are checked when it issues.
func ParseCA(rootsPEM, issuingPEM, keyPEM []byte) (*CA, error) {
	roots, err := parseCerts(rootsPEM, "the roots")
	if err != nil {
		return nil, err
	}
	issuing, err := parseCerts(issuingPEM, "the issuing CA")
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM, "the issuing CA's key")
	if err != nil {
		return nil, err
	}
	if !keyFits(issuing[0], key) {
		return nil, errs.New(codes.InvalidArgument, ReasonKeyMismatch, "the key does not belong to the issuing CA").
			WithHint("give key and certificate of one CA")
	}
	for _, root := range roots {
		if issuing[0].CheckSignatureFrom(root) != nil {
			continue
		}
		cluster, err := caCluster(root)
		if err != nil {
			return nil, err
		}
		if !issuing[0].IsCA || !issuing[0].MaxPathLenZero {
			return nil, unusable("the issuing CA may not be one: it needs a path length of 0").
				WithHint("make it with: trivet ca rotate")
		}
		return &CA{Cluster: cluster, root: root, issuing: issuing[0], issuingKey: key}, nil
	}
	return nil, errs.New(codes.FailedPrecondition, ReasonForeignCA, "no trusted root has signed the issuing CA").
		WithHint("%s", foreignHint)
}

// IssuingPEM returns the issuing CA and its key, both PEM.
func (ca *CA) IssuingPEM() (cert, key []byte, err error) {
	key, err = encodeKey(ca.issuingKey)
	return encodeCerts(ca.issuing), key, err
}

// Issuing returns the issuing CA's certificate; read only.
func (ca *CA) Issuing() *x509.Certificate { return ca.issuing }

// Root returns the root that signed the issuing CA; read only.
func (ca *CA) Root() *x509.Certificate { return ca.root }

// Serial names a certificate among those of its issuer, in hexadecimal.
func Serial(cert *x509.Certificate) string { return cert.SerialNumber.Text(16) }

// PrepareIssuing makes the next issuing CA in dir, with the root's key, and
// leaves the present one in use. One that was prepared before and not put in
// use is returned again.
func PrepareIssuing(dir string, now time.Time) (*CA, error) {
	ca, err := LoadCA(dir) // completes what a crash cut short
	if err != nil {
		return nil, err
	}
	if next, err := loadNext(dir, ca); err == nil {
		return next, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	data, err := readFile(dir, caRootKey,
		"the root's key signs issuing CAs: bring "+caRootKey+" back from where it is kept, for as long as this takes")
	if err != nil {
		return nil, err
	}
	rootKey, err := parseKey(data, filepath.Join(dir, caRootKey))
	if err != nil {
		return nil, err
	}
	if !keyFits(ca.root, rootKey) {
		return nil, errs.New(codes.FailedPrecondition, ReasonKeyMismatch, "%s does not belong to %s in %s", caRootKey, caRootCert, dir).
			WithHint("bring back the key of this very root")
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	issuing, err := newIssuing(ca.Cluster, ca.root, rootKey, &key.PublicKey, now)
	if err != nil {
		return nil, err
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	// A key without a certificate is of an attempt that a crash ended.
	if err := os.Remove(filepath.Join(dir, caNextKey)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove a leftover: %w", err)
	}
	if err := writeNew(dir, "", []file{{caNextKey, keyPEM}, {caNextCert, encodeCerts(issuing)}}); err != nil {
		return nil, err
	}
	return &CA{Cluster: ca.Cluster, root: ca.root, issuing: issuing, issuingKey: key}, nil
}

// CommitIssuing puts the issuing CA that PrepareIssuing made in use in dir. If
// there is none it does nothing: a crash may have come after the last step.
func CommitIssuing(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, caNextCert)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := os.Rename(filepath.Join(dir, caNextKey), filepath.Join(dir, caIssuingKey))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("put the issuing CA in use: %w", err)
	}
	// From here LoadCA finds the new key with the old certificate and goes on.
	if err := os.Rename(filepath.Join(dir, caNextCert), filepath.Join(dir, caIssuingCert)); err != nil {
		return fmt.Errorf("put the issuing CA in use: %w", err)
	}
	return syncDir(dir)
}

// loadNext reads the issuing CA that is not in use yet.
func loadNext(dir string, ca *CA) (*CA, error) {
	certPEM, err := os.ReadFile(filepath.Join(dir, caNextCert))
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(filepath.Join(dir, caNextKey))
	if err != nil {
		return nil, err
	}
	return ParseCA(ca.RootPEM(), certPEM, keyPEM)
}
