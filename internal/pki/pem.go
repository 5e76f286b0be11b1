package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

const (
	pemCert = "CERTIFICATE"
	pemKey  = "PRIVATE KEY"
	pemCSR  = "CERTIFICATE REQUEST"
)

func unusable(format string, args ...any) *errs.Error {
	return errs.New(codes.FailedPrecondition, ReasonInvalid, format, args...)
}

func encodeCerts(certs ...*x509.Certificate) []byte {
	var buf bytes.Buffer
	for _, c := range certs {
		buf.Write(pem.EncodeToMemory(&pem.Block{Type: pemCert, Bytes: c.Raw}))
	}
	return buf.Bytes()
}

// parseCerts reads PEM certificates, at least one; what names them in errors.
func parseCerts(data []byte, what string) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		if block.Type != pemCert {
			return nil, unusable("%s holds a %q, want certificates only", what, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, unusable("parse %s: %w", what, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, unusable("%s holds no certificate", what)
	}
	return certs, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, unusable("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}

func parseKey(data []byte, what string) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != pemKey {
		return nil, unusable("%s holds no PEM block %q", what, pemKey)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, unusable("parse %s: %w", what, err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, unusable("%s is not an ECDSA P-256 key", what)
	}
	return ec, nil
}

// keyFits tells whether key belongs to cert.
func keyFits(cert *x509.Certificate, key *ecdsa.PrivateKey) bool {
	pub, ok := cert.PublicKey.(*ecdsa.PublicKey)
	return ok && pub.Equal(&key.PublicKey)
}

// ChainEnd is when the first certificate of a PEM chain ends.
func ChainEnd(chainPEM []byte) (time.Time, error) {
	certs, err := parseCerts(chainPEM, "the chain")
	if err != nil {
		return time.Time{}, err
	}
	return certs[0].NotAfter, nil
}
