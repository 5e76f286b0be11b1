package identity

import (
	"bytes"
	"encoding/pem"
	"fmt"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/seal"
)

// IssuingFile is what the file with the sealed issuing CA is called, in a
// server's bundle and in its data directory.
const IssuingFile = "issuing.sealed"

const (
	pemCert   = "CERTIFICATE"
	pemSealed = "TRIVET SEALED KEY"
)

// issuing is an issuing CA whose key is sealed.
type issuing struct {
	id          string // of its row
	certificate []byte // PEM
	sealed      []byte
}

// SealIssuing returns the content of an IssuingFile: the issuing CA of ca, its
// key sealed with ring.
func SealIssuing(ring *seal.Keyring, ca *pki.CA) ([]byte, error) {
	i, err := sealIssuing(ring, ca)
	if err != nil {
		return nil, err
	}
	return i.encode(), nil
}

func sealIssuing(ring *seal.Keyring, ca *pki.CA) (issuing, error) {
	cert, key, err := ca.IssuingPEM()
	if err != nil {
		return issuing{}, err
	}
	id := issuingID(pki.Serial(ca.Issuing()))
	return issuing{id: id, certificate: cert, sealed: ring.Seal(id, key)}, nil
}

func (i issuing) encode() []byte {
	out := bytes.Clone(i.certificate)
	return append(out, pem.EncodeToMemory(&pem.Block{Type: pemSealed, Headers: map[string]string{"Id": i.id}, Bytes: i.sealed})...)
}

func decodeIssuing(data []byte) (issuing, error) {
	bad := func() (issuing, error) {
		return issuing{}, errs.New(codes.FailedPrecondition, pki.ReasonInvalid, "%s does not hold an issuing CA and its sealed key", IssuingFile).
			WithHint("copy it from another server's bundle or data directory")
	}
	cert, rest := pem.Decode(data)
	if cert == nil || cert.Type != pemCert {
		return bad()
	}
	key, _ := pem.Decode(rest)
	if key == nil || key.Type != pemSealed {
		return bad()
	}
	return issuing{id: key.Headers["Id"], certificate: pem.EncodeToMemory(cert), sealed: key.Bytes}, nil
}

// open makes the CA.
func (i issuing) open(ring *seal.Keyring, roots []byte) (*pki.CA, error) {
	key, err := ring.Open(i.id, i.sealed)
	if err != nil {
		return nil, fmt.Errorf("open the issuing CA's key: %w", err)
	}
	return pki.ParseCA(roots, i.certificate, key)
}
