package authz

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// as is the context of a call by a caller whose certificate bears uris.
func as(t *testing.T, uris ...string) context.Context {
	t.Helper()
	cert := new(x509.Certificate)
	for _, s := range uris {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		cert.URIs = append(cert.URIs, u)
	}
	state := tls.ConnectionState{HandshakeComplete: true, PeerCertificates: []*x509.Certificate{cert}, VerifiedChains: [][]*x509.Certificate{{cert}}}
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

func call(g *Guard, ctx context.Context, method string) (pki.ID, error) {
	var caller pki.ID
	_, err := g.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
		caller = Caller(ctx)
		return nil, nil
	})
	return caller, err
}

type fakeStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s fakeStream) Context() context.Context { return s.ctx }

const (
	alice  = "spiffe://test/client/alice"
	oscar  = "spiffe://test/operator/oscar"
	putKey = opSvc + "PutConfig"
	remain = mgrSvc + "Remain"
)

func TestGuard(t *testing.T) {
	g := &Guard{Denied: func(uri string) (string, bool) { return "left", uri == "spiffe://test/operator/gone" }}
	for name, c := range map[string]struct {
		ctx    context.Context
		method string
		code   codes.Code
		reason string
	}{
		"a client's own rpc":       {as(t, alice), remain, codes.OK, ""},
		"an operator's rpc":        {as(t, oscar), putKey, codes.OK, ""},
		"another role's rpc":       {as(t, alice), putKey, codes.PermissionDenied, "ROLE_NOT_ALLOWED"},
		"an rpc without a rule":    {as(t, oscar), "/some.Service/Rpc", codes.PermissionDenied, "NO_SUCH_RULE"},
		"somebody denied":          {as(t, "spiffe://test/operator/gone"), putKey, codes.PermissionDenied, "IDENTITY_DENIED"},
		"no connection at all":     {context.Background(), remain, codes.Unauthenticated, "CERT_NO_IDENTITY"},
		"a connection without TLS": {peer.NewContext(context.Background(), new(peer.Peer)), remain, codes.Unauthenticated, "CERT_NO_IDENTITY"},
		"no certificate": {
			peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{}}), remain, codes.Unauthenticated, "CERT_NO_IDENTITY",
		},
		"a certificate without a name": {as(t), remain, codes.Unauthenticated, "CERT_NO_IDENTITY"},
		"a role that does not exist":   {as(t, "spiffe://test/king/alice"), remain, codes.Unauthenticated, "CERT_NO_IDENTITY"},
	} {
		t.Run(name, func(t *testing.T) {
			before := g.Refused()
			_, err := call(g, c.ctx, c.method)
			serr := g.Stream(nil, fakeStream{ctx: c.ctx}, &grpc.StreamServerInfo{FullMethod: c.method}, func(any, grpc.ServerStream) error { return nil })
			for kind, err := range map[string]error{"unary": err, "stream": serr} {
				if errs.Code(err) != c.code || errs.Reason(err) != c.reason {
					t.Errorf("%s: got %v (%s %s), want %s %s", kind, err, errs.Code(err), errs.Reason(err), c.code, c.reason)
				}
			}
			want := before
			if c.code != codes.OK {
				want += 2
			}
			if g.Refused() != want {
				t.Errorf("%d refusals are counted, want %d", g.Refused(), want)
			}
		})
	}
}

func TestHandlersKnowTheirCaller(t *testing.T) {
	g := new(Guard)
	want := pki.ID{Cluster: "test", Role: pki.RoleClient, Name: "alice"}
	if got, err := call(g, as(t, alice), remain); err != nil || got != want {
		t.Errorf("unary: %v, %v; want %v", got, err, want)
	}
	err := g.Stream(nil, fakeStream{ctx: as(t, alice)}, &grpc.StreamServerInfo{FullMethod: remain}, func(_ any, s grpc.ServerStream) error {
		if got := Caller(s.Context()); got != want {
			t.Errorf("stream: %v, want %v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if got := Caller(context.Background()); got != (pki.ID{}) {
		t.Errorf("outside of a call: %v", got)
	}
	if got := Caller(WithCaller(context.Background(), want)); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestErrorsGoOutAsStatuses: what a handler returns reaches the client with
// code and reason.
func TestErrorsGoOutAsStatuses(t *testing.T) {
	g := new(Guard)
	refuse := errs.New(codes.NotFound, "SESSION_NOT_FOUND", "session %q not found", "x")
	_, err := g.Unary(as(t, alice), nil, &grpc.UnaryServerInfo{FullMethod: remain}, func(context.Context, any) (any, error) { return nil, refuse })
	serr := g.Stream(nil, fakeStream{ctx: as(t, alice)}, &grpc.StreamServerInfo{FullMethod: remain}, func(any, grpc.ServerStream) error { return refuse })
	for _, err := range []error{err, serr} {
		if errs.Code(err) != codes.NotFound || errs.Reason(err) != "SESSION_NOT_FOUND" {
			t.Errorf("got %v", err)
		}
	}
}

func TestTable(t *testing.T) {
	known := make(map[pki.Role]bool)
	for _, r := range pki.Roles() {
		known[r] = true
	}
	for _, m := range Methods() {
		roles, ok := Roles(m)
		if !ok || len(roles) == 0 {
			t.Errorf("%s has no roles", m)
		}
		seen := make(map[pki.Role]bool)
		for _, r := range roles {
			if !known[r] || seen[r] {
				t.Errorf("%s: role %q is unknown or there twice", m, r)
			}
			seen[r] = true
		}
		// What servers ask of each other changes the log; nobody else may.
		if strings.HasPrefix(m, peerSvc) && (len(roles) != 1 || roles[0] != pki.RoleServer) {
			t.Errorf("%s may be called by %v", m, roles)
		}
	}
}

// enrolling is the context of a call over a connection that is for asking for
// certificates; without uris it has no certificate.
func enrolling(t *testing.T, uris ...string) context.Context {
	t.Helper()
	p, _ := peer.FromContext(as(t, uris...))
	state := p.AuthInfo.(credentials.TLSInfo).State
	state.NegotiatedProtocol = pki.ALPNEnroll
	if len(uris) == 0 {
		state.PeerCertificates = nil
	}
	return peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}})
}

// TestEnrolmentConnectionsReachNothingElse walks the whole table.
func TestEnrolmentConnectionsReachNothingElse(t *testing.T) {
	g := &Guard{Denied: func(uri string) (string, bool) { return "left", uri == oscar }}
	for _, m := range append(Methods(), "/x.Y/Z") {
		enrol, renew := m == enrollSvc+"Enroll", m == enrollSvc+"Renew"
		if caller, err := call(g, enrolling(t), m); (err == nil) != enrol || caller != (pki.ID{}) {
			t.Errorf("no certificate, %s: %v, %v", m, caller, err)
		} else if err != nil && errs.Code(err) != codes.Unauthenticated {
			t.Errorf("no certificate, %s: %v, want Unauthenticated", m, err)
		}
		if _, err := call(g, enrolling(t, alice), m); (err == nil) != (enrol || renew) {
			t.Errorf("a certificate, %s: %v", m, err)
		}
		if _, err := call(g, enrolling(t, oscar), m); err == nil {
			t.Errorf("denied, %s: let through", m)
		}
		if _, err := call(g, enrolling(t, alice, oscar), m); err == nil {
			t.Errorf("two names, %s: let through", m)
		}
		// The same without the protocol: no certificate, no call.
		ctx := peer.NewContext(context.Background(), &peer.Peer{AuthInfo: credentials.TLSInfo{}})
		if _, err := call(g, ctx, m); errs.Code(err) != codes.Unauthenticated {
			t.Errorf("h2 without a certificate, %s: %v", m, err)
		}
	}
}

func TestDenialEndsOpenStreams(t *testing.T) {
	g := new(Guard)
	begun := make(chan struct{})
	result := make(chan error, 2)
	open := func(uri string) {
		err := g.Stream(nil, fakeStream{ctx: as(t, uri)}, &grpc.StreamServerInfo{FullMethod: mgrSvc + "WatchIntercepts"}, func(_ any, s grpc.ServerStream) error {
			begun <- struct{}{}
			<-s.Context().Done()
			return s.Context().Err()
		})
		result <- err
	}
	go open(alice)
	go open(alice)
	<-begun
	<-begun
	if n := g.End(oscar, "left"); n != 0 {
		t.Errorf("%d streams of somebody else ended", n)
	}
	if n := g.End(alice, "left"); n != 2 {
		t.Errorf("%d streams ended, want 2", n)
	}
	for range 2 {
		err := <-result
		if errs.Reason(err) != ReasonDenied || errs.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "left") {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if n := g.End(alice, "left"); n != 0 {
		t.Errorf("%d ended streams are still known", n)
	}
}

// TestDenialBetweenCheckAndStart: whoever is denied while its stream begins is
// refused too.
func TestDenialBetweenCheckAndStart(t *testing.T) {
	asked := 0
	g := &Guard{Denied: func(string) (string, bool) { asked++; return "left", asked > 1 }}
	err := g.Stream(nil, fakeStream{ctx: as(t, alice)}, &grpc.StreamServerInfo{FullMethod: mgrSvc + "WatchIntercepts"}, func(any, grpc.ServerStream) error {
		t.Error("the handler ran")
		return nil
	})
	if errs.Reason(err) != ReasonDenied {
		t.Errorf("got %v", err)
	}
}
