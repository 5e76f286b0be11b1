package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// etcdCerts are P-256 certificates, as trivet's are, by a CA of their own.
// etcd wants addresses in them, which trivet's do not have.
type etcdCerts struct {
	ca        string
	cert, key []string // by server
	client    *tls.Config
}

// issuer signs the certificates of one bench.
type issuer struct {
	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

func newEtcdCerts(dir string, hosts []string) (*etcdCerts, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make etcd's CA: %w", err)
	}
	tmpl := template("bench CA", 1)
	tmpl.IsCA, tmpl.KeyUsage = true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make etcd's CA: %w", err)
	}
	is := &issuer{dir: dir, key: key, serial: 1}
	if is.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make etcd's CA: %w", err)
	}
	out := &etcdCerts{ca: filepath.Join(dir, "etcd-ca.crt")}
	if err := writePEM(out.ca, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	for i, host := range hosts {
		cert, key, err := is.issue(hostName(i), host)
		if err != nil {
			return nil, err
		}
		out.cert, out.key = append(out.cert, cert), append(out.key, key)
	}
	cert, ckey, err := is.issue("client", "")
	if err != nil {
		return nil, err
	}
	pair, err := tls.LoadX509KeyPair(cert, ckey)
	if err != nil {
		return nil, fmt.Errorf("load etcd's client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(is.cert)
	out.client = clientTLS(pair, roots)
	return out, nil
}

func template(name string, serial int64) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, BasicConstraintsValid: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafTTL), KeyUsage: x509.KeyUsageDigitalSignature,
		// Servers of etcd are clients of each other.
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// issue writes a certificate and its key and returns their files.
func (is *issuer) issue(name, host string) (certFile, keyFile string, err error) {
	fail := func(err error) (string, string, error) {
		return "", "", fmt.Errorf("make etcd's certificate of %s: %w", name, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	is.serial++
	tmpl := template(name, is.serial)
	if host != "" {
		tmpl.IPAddresses = []net.IP{net.ParseIP(host)}
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, is.cert, &key.PublicKey, is.key)
	if err != nil {
		return fail(err)
	}
	kder, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fail(err)
	}
	certFile, keyFile = filepath.Join(is.dir, "etcd-"+name+".crt"), filepath.Join(is.dir, "etcd-"+name+".key")
	if err := writePEM(certFile, "CERTIFICATE", der); err != nil {
		return fail(err)
	}
	if err := writePEM(keyFile, "EC PRIVATE KEY", kder); err != nil {
		return fail(err)
	}
	return certFile, keyFile, nil
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
