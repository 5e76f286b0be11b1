package pki

import (
	"crypto/elliptic"
	"testing"
)

// FuzzCSR reads certificate requests as strangers send them. What is taken is a
// key on the curve that certificates are made for.
func FuzzCSR(f *testing.F) {
	csr, _, err := NewCSR()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n-----END CERTIFICATE REQUEST-----\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		key, err := parseCSR(raw)
		if err == nil && key.Curve != elliptic.P256() {
			t.Errorf("took a key on %v", key.Curve)
		}
	})
}
