package portmux

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// alpnH2 is the ALPN name of HTTP/2, which gRPC demands.
const alpnH2 = "h2"

var info = credentials.ProtocolInfo{SecurityProtocol: "tls"}

// Credentials returns the credentials of a gRPC server that serves
// Mux.ALPN("h2"). The handshake is done there already; this tells gRPC its
// outcome: handlers find credentials.TLSInfo in the peer of a call. A
// connection that came another way is refused. It cannot dial.
func Credentials() credentials.TransportCredentials { return CredentialsFor(alpnH2) }

// CredentialsFor is Credentials for gRPC under another ALPN name.
func CredentialsFor(alpn string) credentials.TransportCredentials { return serverCreds{alpn} }

type serverCreds struct{ alpn string }

func (s serverCreds) ServerHandshake(nc net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tc, ok := nc.(*tls.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("take over connection from %s: a %T has not been through the mux", nc.RemoteAddr(), nc)
	}
	state := tc.ConnectionState()
	if !state.HandshakeComplete || state.NegotiatedProtocol != s.alpn {
		return nil, nil, fmt.Errorf("take over connection from %s: no finished handshake for %s", nc.RemoteAddr(), s.alpn)
	}
	return tc, tlsInfo(state), nil
}

func (serverCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("dial: these are credentials of a server; use ClientCredentials")
}

func (serverCreds) Info() credentials.ProtocolInfo            { return info }
func (c serverCreds) Clone() credentials.TransportCredentials { return c }
func (serverCreds) OverrideServerName(string) error           { return nil }

// ClientCredentials returns the credentials of a gRPC client for conf, which
// is copied. No host name is sent or checked: conf decides who may answer.
//
// explain, if set, turns an error of the handshake, or of the first read after
// it, into what the user should see. Under TLS 1.3 that first read is where a
// client learns that the server refused its certificate. An error with a
// GRPCStatus method ends waiting calls with that status.
func ClientCredentials(conf *tls.Config, explain func(error) error) credentials.TransportCredentials {
	return ClientCredentialsFor(alpnH2, conf, explain)
}

// ClientCredentialsFor is ClientCredentials for gRPC under another ALPN name.
func ClientCredentialsFor(alpn string, conf *tls.Config, explain func(error) error) credentials.TransportCredentials {
	conf = conf.Clone()
	conf.NextProtos = []string{alpn}
	if explain == nil {
		explain = func(err error) error { return err }
	}
	return &clientCreds{alpn: alpn, conf: conf, explain: explain}
}

type clientCreds struct {
	alpn    string
	conf    *tls.Config
	explain func(error) error
}

func (c *clientCreds) ClientHandshake(
	ctx context.Context, _ string, nc net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	tc := tls.Client(nc, c.conf)
	if err := tc.HandshakeContext(ctx); err != nil {
		_ = nc.Close() // why it is closed is what matters
		return nil, nil, c.explain(err)
	}
	state := tc.ConnectionState()
	if state.NegotiatedProtocol != c.alpn {
		_ = nc.Close() // why it is closed is what matters
		return nil, nil, fmt.Errorf("dial %s: the peer does not speak %s", nc.RemoteAddr(), c.alpn)
	}
	return &explainedConn{Conn: tc, explain: c.explain}, tlsInfo(state), nil
}

func (c *clientCreds) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("accept: these are credentials of a client; use Credentials")
}

func (c *clientCreds) Info() credentials.ProtocolInfo          { return info }
func (c *clientCreds) Clone() credentials.TransportCredentials { return c }
func (c *clientCreds) OverrideServerName(string) error         { return nil }

// explainedConn passes errors through explain until something was read.
type explainedConn struct {
	*tls.Conn
	explain func(error) error
	spoken  atomic.Bool
}

func (c *explainedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.spoken.Store(true)
	}
	if err != nil && !c.spoken.Load() {
		err = c.explain(err)
	}
	return n, err
}

func tlsInfo(state tls.ConnectionState) credentials.TLSInfo {
	return credentials.TLSInfo{
		State:          state,
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		SPIFFEID:       spiffeID(state),
	}
}

// spiffeID returns the peer's one SPIFFE name, or nil.
func spiffeID(state tls.ConnectionState) *url.URL {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	if uris := state.PeerCertificates[0].URIs; len(uris) == 1 && uris[0].Scheme == "spiffe" {
		return uris[0]
	}
	return nil
}
