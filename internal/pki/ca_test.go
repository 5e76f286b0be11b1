package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/internal/errs"
)

func TestInitCA(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	ca, err := InitCA(dir, "prod", testNow)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := InitCA(dir, "prod", testNow); errs.Reason(err) != ReasonFilesExist || errs.From(err).Hint == "" {
		t.Errorf("second InitCA: %v, want %s", err, ReasonFilesExist)
	}
	if _, err := InitCA(t.TempDir(), "Prod!", testNow); errs.Reason(err) != ReasonNoIdentity {
		t.Errorf("bad name: %v", err)
	}
	for _, name := range []string{caRootCert, caRootKey, caIssuingCert, caIssuingKey} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
	if !ca.issuing.MaxPathLenZero || ca.issuing.MaxPathLen != 0 || ca.root.MaxPathLen != 1 {
		t.Errorf("path lengths: root %d, issuing %d", ca.root.MaxPathLen, ca.issuing.MaxPathLen)
	}
	if want := testNow.Add(RootTTL); !ca.root.NotAfter.Equal(want) {
		t.Errorf("root ends %v, want %v", ca.root.NotAfter, want)
	}
	if want := testNow.Add(IssuingTTL); !ca.NotAfter().Equal(want) || !ca.RenewAt().Equal(want.AddDate(0, 0, -90)) {
		t.Errorf("issuing CA ends %v, renew at %v", ca.NotAfter(), ca.RenewAt())
	}
}

func TestLoadCAWithoutRootKey(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "ca")
	if _, err := InitCA(dir, "eu.prod", testNow); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, caRootKey)); err != nil {
		t.Fatal(err)
	}
	ca, err := LoadCA(dir)
	if err != nil {
		t.Fatal(err)
	}
	if ca.Cluster != "eu.prod" {
		t.Errorf("cluster %q", ca.Cluster)
	}
	if _, err := ca.Issue(Template{ID: ID{"eu.prod", RoleNode, "n"}}, testNow); err != nil {
		t.Error(err)
	}
}

func TestLoadCARefusesMixedFiles(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		caIssuingKey: ReasonKeyMismatch, caRootCert: ReasonForeignCA, "": ReasonFilesMissing,
	} {
		a, b := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
		for _, dir := range []string{a, b} {
			if _, err := InitCA(dir, "prod", testNow); err != nil {
				t.Fatal(err)
			}
		}
		if name == "" {
			a = t.TempDir()
		} else {
			data, err := os.ReadFile(filepath.Join(b, name))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(a, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := LoadCA(a); errs.Reason(err) != want || errs.From(err).Hint == "" {
			t.Errorf("with foreign %q: %v (%s), want %s", name, err, errs.Reason(err), want)
		}
	}
}

func TestLeafFollowsItsRole(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	both := append(client[:1:1], x509.ExtKeyUsageServerAuth)
	for role, want := range map[Role]struct {
		ttl   time.Duration
		usage []x509.ExtKeyUsage
	}{
		RoleServer: {7 * 24 * time.Hour, both}, RoleNode: {24 * time.Hour, both}, RoleAgent: {24 * time.Hour, client},
		RoleClient: {12 * time.Hour, client}, RoleOperator: {12 * time.Hour, client},
		RoleViewer: {12 * time.Hour, client}, RoleDebug: {time.Hour, client},
	} {
		leaf := issue(t, ca, role, "x", 0).Leaf()
		if !leaf.NotAfter.Equal(testNow.Add(want.ttl)) || !leaf.NotBefore.Equal(testNow.Add(-Skew)) {
			t.Errorf("%s: valid %v to %v, want %v", role, leaf.NotBefore, leaf.NotAfter, want.ttl)
		}
		if diff := cmp.Diff(want.usage, leaf.ExtKeyUsage); diff != "" {
			t.Errorf("%s: usage (-want +got):\n%s", role, diff)
		}
		if leaf.IsCA || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
			t.Errorf("%s: CA %v, key usage %v", role, leaf.IsCA, leaf.KeyUsage)
		}
	}
}

func TestIssueBoundsLifetime(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	id := ID{"prod", RoleServer, "s1"}
	for _, tc := range []struct {
		name string
		tmpl Template
		at   time.Time
		want string
	}{
		{"as long as the CA", Template{ID: id, TTL: IssuingTTL}, testNow, ""},
		{"moments later", Template{ID: id, TTL: IssuingTTL}, testNow.Add(time.Second), ""},
		{"longer than the CA", Template{ID: id, TTL: IssuingTTL + time.Hour}, testNow, ReasonLifetime},
		{"negative", Template{ID: id, TTL: -1}, testNow, ReasonLifetime},
		{"CA is over", Template{ID: id}, testNow.Add(IssuingTTL + time.Hour), ReasonExpired},
		{"other cluster", Template{ID: ID{"dev", RoleServer, "s1"}}, testNow, ReasonWrongCluster},
		{"bad name", Template{ID: ID{"prod", RoleServer, "a/b"}}, testNow, ReasonNoIdentity},
		{"bad role", Template{ID: ID{"prod", "root", "a"}}, testNow, ReasonNoIdentity},
	} {
		b, err := ca.Issue(tc.tmpl, tc.at)
		if errs.Reason(err) != tc.want {
			t.Errorf("%s: %v (%s), want %q", tc.name, err, errs.Reason(err), tc.want)
		}
		if err != nil && errs.From(err).Hint == "" {
			t.Errorf("%s: no hint with %v", tc.name, err)
		}
		if err == nil && b.NotAfter.After(ca.NotAfter()) {
			t.Errorf("%s: outlives its CA: %v", tc.name, b.NotAfter)
		}
	}
}

func TestSignCSR(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	csr, key, err := NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	tmpl := Template{
		ID: ID{"prod", RoleNode, "n1"}, DNS: []string{"n1.example.com"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)},
	}
	chain, err := ca.SignCSR(csr, tmpl, testNow)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseBundle(ca.RootPEM(), chain, key)
	if err != nil {
		t.Fatal(err)
	}
	if b.ID != tmpl.ID || b.Leaf().VerifyHostname("n1.example.com") != nil || b.Leaf().VerifyHostname("192.0.2.1") != nil {
		t.Errorf("signed %v, %v, %v", b.ID, b.Leaf().DNSNames, b.Leaf().IPAddresses)
	}
}

func TestSignCSRIgnoresNamesInTheRequest(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	csr := request(t, key, &x509.CertificateRequest{
		DNSNames: []string{"evil.example.com"},
		URIs:     []*url.URL{ID{"prod", RoleOperator, "root"}.URI()},
	})
	chain, err := ca.SignCSR(csr, Template{ID: ID{"prod", RoleViewer, "v"}}, testNow)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := parseCerts(chain, "chain")
	if err != nil {
		t.Fatal(err)
	}
	if id, err := CertID(certs[0]); err != nil || id.Role != RoleViewer || len(certs[0].DNSNames) > 0 {
		t.Errorf("got %v, %v, %v", id, certs[0].DNSNames, err)
	}
}

func TestSignCSRRefuses(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	key384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good, _, err := NewCSR()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(good)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for name, csr := range map[string][]byte{
		"empty":           nil,
		"garbage":         []byte("x"),
		"huge":            make([]byte, maxCSR+1),
		"certificate":     ca.RootPEM(),
		"other curve":     request(t, key384, &x509.CertificateRequest{}),
		"wrong signature": pem.EncodeToMemory(block),
	} {
		_, err := ca.SignCSR(csr, Template{ID: ID{"prod", RoleViewer, "v"}}, testNow)
		if errs.Reason(err) != ReasonInvalid || errs.From(err).Hint == "" {
			t.Errorf("%s: %v, want %s", name, err, ReasonInvalid)
		}
	}
}

func request(t *testing.T, key *ecdsa.PrivateKey, r *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCSR, Bytes: der})
}
