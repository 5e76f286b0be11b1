package pki

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"testing"
	"time"
)

// testNow is what clocks in these tests show unless they are told otherwise.
var testNow = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func clockAt(now time.Time) SourceOption { return WithClock(func() time.Time { return now }) }

func newTestCA(t *testing.T, cluster string) *CA {
	t.Helper()
	ca, err := InitCA(filepath.Join(t.TempDir(), "ca"), cluster, testNow)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *CA, role Role, name string, ttl time.Duration) *Bundle {
	t.Helper()
	b, err := ca.Issue(Template{ID: ID{ca.Cluster, role, name}, TTL: ttl}, testNow)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// forged describes a leaf that a CA of ours would never issue.
type forged struct {
	uris                []string
	notBefore, notAfter time.Time
	usage               []x509.ExtKeyUsage
	isCA                bool
	selfSigned          bool
	leafOnly            bool // leave the issuing CA out of the chain
}

// forge makes a bundle with f's leaf, bypassing all checks.
func forge(t *testing.T, ca *CA, trust *CA, f forged) *Bundle {
	t.Helper()
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(7),
		NotBefore:    testNow.Add(-time.Hour), NotAfter: testNow.Add(time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  f.isCA,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if !f.notBefore.IsZero() {
		tmpl.NotBefore = f.notBefore
	}
	if !f.notAfter.IsZero() {
		tmpl.NotAfter = f.notAfter
	}
	if f.usage != nil {
		tmpl.ExtKeyUsage = f.usage
	}
	for _, s := range f.uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		tmpl.URIs = append(tmpl.URIs, u)
	}
	parent, signer := ca.issuing, ca.issuingKey
	if f.selfSigned {
		parent, signer = tmpl, key
	}
	leaf := signCert(t, tmpl, parent, &key.PublicKey, signer)
	chain := []*x509.Certificate{leaf, ca.issuing}
	if f.leafOnly || f.selfSigned {
		chain = chain[:1]
	}
	b := &Bundle{
		ID: ID{ca.Cluster, RoleClient, "forged"}, NotBefore: tmpl.NotBefore, NotAfter: tmpl.NotAfter,
		chain: chain, cert: tlsCertificate(chain, key), roots: x509.NewCertPool(), rootPEM: trust.RootPEM(),
	}
	b.roots.AddCert(trust.root)
	if b.keyPEM, err = encodeKey(key); err != nil {
		t.Fatal(err)
	}
	return b
}

func signCert(t *testing.T, tmpl, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// outcome is what the two ends of a handshake saw.
type outcome struct {
	server, client         tls.ConnectionState
	serverErr, clientError error // clientError: of the handshake or of the first read
}

// shake connects two configurations; the server says one byte. It goes through
// TCP because a pipe has no buffer: a server that refuses a certificate and a
// client that is not done writing would block each other.
func shake(t *testing.T, server, client *tls.Config) outcome {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	cc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	sc, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer sc.Close()
	deadline := time.Now().Add(10 * time.Second)
	if err := errors.Join(sc.SetDeadline(deadline), cc.SetDeadline(deadline)); err != nil {
		t.Fatal(err)
	}

	var out outcome
	done := make(chan struct{})
	go func() {
		defer close(done)
		tc := tls.Server(sc, server)
		if out.serverErr = tc.Handshake(); out.serverErr != nil {
			return
		}
		out.server = tc.ConnectionState()
		_, out.serverErr = tc.Write([]byte{1})
	}()
	tc := tls.Client(cc, client)
	if out.clientError = tc.Handshake(); out.clientError == nil {
		_, out.clientError = tc.Read(make([]byte, 1))
		out.client = tc.ConnectionState()
	} else {
		_ = cc.Close() // so that the server does not wait for more
	}
	<-done
	return out
}
