package tunnel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"testing"

	"trivet/proto/telepresence/managersvc"
)

// tlsPair is tcpPair under TLS.
func tlsPair(t testing.TB) (app, local *tls.Conn) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a, l := tcpPair(t)
	local = tls.Server(l, &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
	})
	// The test is about how the connection ends, not about who is there.
	app = tls.Client(a, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
	done := make(chan error, 1)
	go func() { done <- local.Handshake() }()
	if err := app.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, done); err != nil {
		t.Fatal(err)
	}
	return app, local
}

// TLS has an end of data of its own, which an abort must not send.
func TestAbortBelowTLSIsNoEndOfData(t *testing.T) {
	t.Parallel()
	app, local := tlsPair(t)
	end := make(chan struct{})
	s := scripted(t, codecs{}, func(s managersvc.Manager_TunnelServer) error {
		if err := s.Send(NewNormal([]byte("part"))); err != nil {
			return err
		}
		<-end
		return s.Send(NewDisconnect())
	})
	r := startServe(t, s, Opener, local, Options{})
	if _, err := io.ReadFull(app, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	close(end)
	wantReset(t, app)
	if st, _ := r.wait(t); st.End != EndDisconnected || st.BytesIn != 4 {
		t.Errorf("%+v", st)
	}
}

func TestCleanEndThroughTLS(t *testing.T) {
	t.Parallel()
	app, local := tlsPair(t)
	s := scripted(t, codecs{server: true, client: true}, func(s managersvc.Manager_TunnelServer) error {
		for {
			m, err := s.Recv()
			if err != nil {
				return s.Send(NewCloseSend())
			}
			if err := s.Send(m); err != nil {
				return err
			}
		}
	})
	r := startServe(t, s, Opener, local, Options{})
	want := pattern(300_000)
	go func() {
		if _, err := app.Write(want); err == nil {
			_ = app.CloseWrite()
		}
	}()
	if b, err := io.ReadAll(app); err != nil || string(b) != string(want) {
		t.Errorf("%d bytes came back, %v", len(b), err)
	}
	if st, err := r.wait(t); st.End != EndClean || err != nil {
		t.Errorf("ended %s with %v", st.End, err)
	}
}
