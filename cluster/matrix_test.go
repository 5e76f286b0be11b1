package cluster_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/authz"
	"trivet/cluster/clustertest"
	"trivet/internal/errs"
	"trivet/internal/pki"
	"trivet/internal/portmux"
)

var rewriteMatrix = flag.Bool("rewrite-matrix", false, "write testdata/matrix.txt anew; look at the difference before committing it")

const matrixFile = "testdata/matrix.txt"

// matrixCall bounds one call of the matrix. What is let in may wait for ever.
const matrixCall = 300 * time.Millisecond

// TestAuthorisationMatrix calls every rpc of a real server with a certificate
// of every role. What came out is compared with a file that people have read,
// not with the table that the server goes by.
func TestAuthorisationMatrix(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	registered := methods(c.Servers[0].Server.GRPC())
	allowed := make(map[string][]string)
	for _, role := range pki.Roles() {
		name := "matrix"
		if role == pki.RoleAgent {
			name = "default/Deployment/matrix/uid"
		}
		conn := c.Conn(c.Servers[0], role, name)
		for m, streaming := range registered {
			if ok, err := letIn(conn, m, streaming); ok {
				allowed[m] = append(allowed[m], string(role))
			} else if errs.Code(err) != codes.PermissionDenied || errs.Reason(err) != authz.ReasonRole {
				t.Errorf("%s calls %s: %v (%s)", role, m, err, errs.Reason(err))
			}
		}
	}
	var lines []string
	for m := range registered {
		lines = append(lines, fmt.Sprintf("%s: %s", m, strings.Join(allowed[m], " ")))
	}
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	if *rewriteMatrix {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(matrixFile, []byte(got), 0o644))
	}
	want, err := os.ReadFile(matrixFile)
	must(t, err)
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("another matrix (-want +got):\n%s", d)
	}
}

// letIn makes a call and says whether the guard let it through, whatever came
// of it then.
func letIn(conn *grpc.ClientConn, method string, streaming bool) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), clustertest.Wait)
	defer cancel()
	var err error
	if streaming {
		err = openStream(ctx, conn, method)
	} else {
		ctx, cancel := context.WithTimeout(ctx, matrixCall)
		defer cancel()
		// Whether it was refused is known before the deadline: the guard comes
		// first.
		err = conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	}
	switch errs.Reason(err) {
	case authz.ReasonRole, authz.ReasonNoRule, authz.ReasonDenied, authz.ReasonNoIdentity:
		return false, err
	}
	return true, err
}

func openStream(ctx context.Context, conn *grpc.ClientConn, method string) error {
	ctx, cancel := context.WithTimeout(ctx, matrixCall)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	if err := s.CloseSend(); err != nil {
		return err
	}
	return s.RecvMsg(&emptypb.Empty{})
}

// TestBadCertificates: none of them gets as far as a call.
func TestBadCertificates(t *testing.T) {
	c := clustertest.Start(t, 1, nil)
	foreign := clustertest.Start(t, 1, nil)
	const uri = "spiffe://test/operator/mallory"
	for name, x := range map[string]struct {
		ca    *pki.CA
		forge forgery
		alert string
	}{
		"expired":             {c.CA, forgery{uris: []string{uri}, ended: time.Minute}, "expired certificate"},
		"foreign CA":          {foreign.CA, forgery{uris: []string{uri}}, "unknown certificate authority"},
		"wrong usage":         {c.CA, forgery{uris: []string{uri}, usage: x509.ExtKeyUsageServerAuth}, "bad certificate"},
		"another cluster":     {c.CA, forgery{uris: []string{"spiffe://prod/operator/mallory"}}, "bad certificate"},
		"no name":             {c.CA, forgery{}, "bad certificate"},
		"two names":           {c.CA, forgery{uris: []string{"spiffe://test/client/mallory", uri}}, "bad certificate"},
		"not a SPIFFE name":   {c.CA, forgery{uris: []string{"https://test/operator/mallory"}}, "bad certificate"},
		"unknown role":        {c.CA, forgery{uris: []string{"spiffe://test/root/mallory"}}, "bad certificate"},
		"percent encoding":    {c.CA, forgery{uris: []string{"spiffe://test/operator/mall%6Fry"}}, "bad certificate"},
		"path that goes back": {c.CA, forgery{uris: []string{"spiffe://test/client/../operator/mallory"}}, "bad certificate"},
		"name with a query":   {c.CA, forgery{uris: []string{uri + "?x"}}, "bad certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			chain, key := x.forge.sign(t, x.ca)
			conf := pki.ClientConfig(c.Source(pki.RoleClient, "alice"), pki.Policy{ALPN: []string{"h2"}})
			conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &tls.Certificate{Certificate: chain, PrivateKey: key}, nil
			}
			conn, err := grpc.NewClient("passthrough:///"+c.Servers[0].Address, grpc.WithTransportCredentials(portmux.ClientCredentials(conf, nil)))
			must(t, err)
			defer conn.Close()
			err = conn.Invoke(testContext(t), "/trivet.operator.v1.Operator/Status", &emptypb.Empty{}, &emptypb.Empty{})
			if code := errs.Code(err); err == nil || code != codes.Unavailable && code != codes.Unauthenticated && code != codes.PermissionDenied {
				t.Fatalf("a call came through: %v", err)
			}
			if !strings.Contains(err.Error(), x.alert) {
				t.Errorf("got %v, want it to say %q", err, x.alert)
			}
		})
	}
}

// forgery is a leaf that a CA of ours would not issue.
type forgery struct {
	uris  []string
	ended time.Duration
	usage x509.ExtKeyUsage
}

func (f forgery) sign(t *testing.T, ca *pki.CA) ([][]byte, *ecdsa.PrivateKey) {
	t.Helper()
	_, keyPEM, err := ca.IssuingPEM()
	must(t, err)
	block, _ := pem.Decode(keyPEM)
	caKey, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	must(t, err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if f.ended > 0 {
		tmpl.NotAfter = time.Now().Add(-f.ended)
	}
	if f.usage != 0 {
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{f.usage}
	}
	for _, s := range f.uris {
		u, err := url.Parse(s)
		must(t, err)
		tmpl.URIs = append(tmpl.URIs, u)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca.Issuing(), &key.PublicKey, caKey)
	must(t, err)
	return [][]byte{der, ca.Issuing().Raw}, key
}
