package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// TestServerVerifiesClient tells, for each kind of client certificate, what
// the server's log says and what the client's user sees.
func TestServerVerifiesClient(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	alice := []string{"spiffe://prod/client/alice"}
	clientOnly := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	policy := Policy{ALPN: []string{"h2"}, Roles: []Role{RoleClient, RoleNode}}
	server := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))

	for _, tc := range []struct {
		name         string
		client       *Bundle
		server, user string // reasons; "" for none
	}{
		{"valid", issue(t, ca, RoleClient, "alice", 0), "", ""},
		{"valid, other allowed role", issue(t, ca, RoleNode, "n1", 0), "", ""},
		{"valid, hand-made", forge(t, ca, ca, forged{uris: alice, usage: clientOnly}), "", ""},
		{"expired", forge(t, ca, ca, forged{uris: alice, notAfter: testNow.Add(-time.Minute)}), ReasonExpired, ReasonExpired},
		{
			"not yet valid", forge(t, ca, ca, forged{uris: alice, notBefore: testNow.Add(time.Minute)}),
			ReasonNotYetValid, ReasonNotYetValid,
		},
		{"foreign CA of the same name", forge(t, foreign, ca, forged{uris: alice}), ReasonForeignCA, ReasonForeignCA},
		{"wrong cluster", forge(t, ca, ca, forged{uris: []string{"spiffe://dev/client/alice"}}), ReasonWrongCluster, ReasonRefused},
		{"wrong role", issue(t, ca, RoleViewer, "v", 0), ReasonWrongRole, ReasonRefused},
		{
			"wrong usage", forge(t, ca, ca, forged{uris: alice, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}),
			ReasonWrongUsage, ReasonRefused,
		},
		{"no SAN", forge(t, ca, ca, forged{}), ReasonNoIdentity, ReasonRefused},
		{
			"two SANs", forge(t, ca, ca, forged{uris: []string{alice[0], "spiffe://prod/operator/o"}}),
			ReasonNoIdentity, ReasonRefused,
		},
		{"other URI", forge(t, ca, ca, forged{uris: []string{"https://prod/client/alice"}}), ReasonNoIdentity, ReasonRefused},
		{"query in SAN", forge(t, ca, ca, forged{uris: []string{alice[0] + "?x"}}), ReasonNoIdentity, ReasonRefused},
		{"escape in SAN", forge(t, ca, ca, forged{uris: []string{"spiffe://prod/client/%61lice"}}), ReasonNoIdentity, ReasonRefused},
		{"self-signed", forge(t, ca, ca, forged{uris: alice, selfSigned: true}), ReasonForeignCA, ReasonForeignCA},
		{"intermediate missing", forge(t, ca, ca, forged{uris: alice, leafOnly: true}), ReasonForeignCA, ReasonForeignCA},
		{"CA as leaf", forge(t, ca, ca, forged{uris: alice, isCA: true}), ReasonInvalid, ReasonRefused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			client := NewSource(tc.client, clockAt(testNow))
			out := shake(t, ServerConfig(server, policy), ClientConfig(client, Policy{ALPN: []string{"h2"}}))
			if out.clientError != nil {
				// All of these are refusals by the server.
				var op interface{ Timeout() bool }
				if !errors.As(out.clientError, &op) {
					t.Errorf("the client's own check failed: %v", out.clientError)
				}
			}
			got := ExplainHandshake(out.serverErr, server)
			if errs.Reason(got) != tc.server {
				t.Errorf("server: %v (%s), want %q", got, errs.Reason(got), tc.server)
			}
			seen := ExplainHandshake(out.clientError, client)
			if errs.Reason(seen) != tc.user {
				t.Errorf("client: %v (%s), want %q", seen, errs.Reason(seen), tc.user)
			}
			for _, err := range []error{got, seen} {
				if err != nil && errs.From(err).Hint == "" {
					t.Errorf("no hint with %v", err)
				}
			}
		})
	}
}

func TestServerDemandsCertificate(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	src := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
	conf := ClientConfig(src, Policy{ALPN: []string{"h2"}})
	conf.GetClientCertificate = nil
	out := shake(t, ServerConfig(src, Policy{ALPN: []string{"h2"}, Roles: Roles()}), conf)
	if out.serverErr == nil {
		t.Fatal("the server took a client without certificate")
	}
	if got := ExplainHandshake(out.clientError, src); errs.Reason(got) != ReasonNoIdentity {
		t.Errorf("client: %v, want %s", got, ReasonNoIdentity)
	}
}

func TestServerWithoutRolesAdmitsNobody(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	for _, role := range Roles() {
		server := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
		client := NewSource(issue(t, ca, role, "x", 0), clockAt(testNow))
		out := shake(t, ServerConfig(server, Policy{}), ClientConfig(client, Policy{}))
		if errs.Reason(out.serverErr) != ReasonWrongRole {
			t.Errorf("role %s: %v, want %s", role, out.serverErr, ReasonWrongRole)
		}
	}
}

func TestClientVerifiesServer(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	s1 := []string{"spiffe://prod/server/s1"}
	client := NewSource(issue(t, ca, RoleClient, "alice", 0), clockAt(testNow))
	for _, tc := range []struct {
		name   string
		server *Bundle
		policy Policy
		want   string
	}{
		{"valid", issue(t, ca, RoleServer, "s1", 0), Policy{}, ""},
		{"node where a node is wanted", issue(t, ca, RoleNode, "n1", 0), Policy{Roles: []Role{RoleNode}}, ""},
		{"node where a server is wanted", issue(t, ca, RoleNode, "n1", 0), Policy{}, ReasonWrongRole},
		{"client plays server", issue(t, ca, RoleClient, "mallory", 0), Policy{}, ReasonWrongUsage},
		{"expired", forge(t, ca, ca, forged{uris: s1, notAfter: testNow.Add(-time.Second)}), Policy{}, ReasonExpired},
		{"not yet valid", forge(t, ca, ca, forged{uris: s1, notBefore: testNow.Add(time.Hour / 2)}), Policy{}, ReasonNotYetValid},
		{"foreign CA", forge(t, foreign, ca, forged{uris: s1}), Policy{}, ReasonForeignCA},
		{"self-signed", forge(t, ca, ca, forged{uris: s1, selfSigned: true}), Policy{}, ReasonForeignCA},
		{"intermediate missing", forge(t, ca, ca, forged{uris: s1, leafOnly: true}), Policy{}, ReasonForeignCA},
		{"wrong cluster", forge(t, ca, ca, forged{uris: []string{"spiffe://dev/server/s1"}}), Policy{}, ReasonWrongCluster},
		{"no SAN", forge(t, ca, ca, forged{}), Policy{}, ReasonNoIdentity},
		{"two SANs", forge(t, ca, ca, forged{uris: []string{s1[0], "spiffe://prod/server/s2"}}), Policy{}, ReasonNoIdentity},
		{
			"not the one dialled", issue(t, ca, RoleServer, "s1", 0),
			Policy{Names: func(id ID) error { return errors.New("want s2, got " + id.Name) }},
			ReasonRefused,
		},
		{
			"refused with a reason", issue(t, ca, RoleServer, "s1", 0),
			Policy{Names: func(ID) error { return errs.New(codes.PermissionDenied, "DENY_LISTED", "no") }},
			"DENY_LISTED",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			server := NewSource(tc.server, clockAt(testNow))
			out := shake(t, ServerConfig(server, Policy{Roles: Roles()}), ClientConfig(client, tc.policy))
			got := ExplainHandshake(out.clientError, client)
			if errs.Reason(got) != tc.want {
				t.Errorf("client: %v (%s), want %q", got, errs.Reason(got), tc.want)
			}
			if (out.serverErr == nil) != (tc.want == "") {
				t.Errorf("server: %v, client: %v", out.serverErr, out.clientError)
			}
		})
	}
}

func TestPeerIDOnBothEnds(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	server := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
	agent := NewSource(issue(t, ca, RoleAgent, "ns/Deployment/web/uid-1", 0), clockAt(testNow))
	out := shake(t, ServerConfig(server, Policy{Roles: Roles()}), ClientConfig(agent, Policy{}))
	if out.serverErr != nil || out.clientError != nil {
		t.Fatalf("server %v, client %v", out.serverErr, out.clientError)
	}
	if out.server.Version != tls.VersionTLS13 {
		t.Errorf("version %x, want TLS 1.3", out.server.Version)
	}
	seenByServer, err1 := PeerID(out.server)
	seenByClient, err2 := PeerID(out.client)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	want := []ID{{"prod", RoleAgent, "ns/Deployment/web/uid-1"}, {"prod", RoleServer, "s1"}}
	if diff := cmp.Diff(want, []ID{seenByServer, seenByClient}); diff != "" {
		t.Errorf("identities (-want +got):\n%s", diff)
	}
	if _, err := PeerID(tls.ConnectionState{}); errs.Reason(err) != ReasonNoIdentity {
		t.Errorf("PeerID without handshake: %v, want %s", err, ReasonNoIdentity)
	}
}

func TestRolesForNarrowsOneProtocol(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	server := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
	conf := ServerConfig(server, Policy{
		ALPN: []string{"h2", "trivet-raft/1"}, Roles: Roles(),
		RolesFor: map[string][]Role{"trivet-raft/1": {RoleServer}},
	})
	for _, tc := range []struct {
		role Role
		alpn string
		want string
	}{
		{RoleServer, "trivet-raft/1", ""},
		{RoleServer, "h2", ""},
		{RoleOperator, "h2", ""},
		{RoleOperator, "trivet-raft/1", ReasonWrongRole},
	} {
		client := NewSource(issue(t, ca, tc.role, "x", 0), clockAt(testNow))
		out := shake(t, conf, ClientConfig(client, Policy{ALPN: []string{tc.alpn}}))
		if errs.Reason(out.serverErr) != tc.want {
			t.Errorf("%s with %s: %v, want %q", tc.role, tc.alpn, out.serverErr, tc.want)
		}
	}
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	src := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
	old := ClientConfig(src, Policy{})
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	out := shake(t, ServerConfig(src, Policy{Roles: Roles()}), old)
	if out.serverErr == nil {
		t.Fatal("TLS 1.2 was spoken")
	}
	if got := ExplainHandshake(out.clientError, src); errs.Reason(got) != ReasonProtocol {
		t.Errorf("client: %v, want %s", got, ReasonProtocol)
	}
}

// resumable returns a client configuration that has one session stored.
func resumable(t *testing.T, server *tls.Config, client *Source, p Policy) *tls.Config {
	t.Helper()
	conf := ClientConfig(client, p)
	conf.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	conf.ServerName = "key-of-the-cache" // else it is the address, a new one each time
	if out := shake(t, server, conf); out.serverErr != nil || out.clientError != nil {
		t.Fatalf("first handshake: server %v, client %v", out.serverErr, out.clientError)
	}
	return conf
}

func TestResumedSessionIsVerifiedByServer(t *testing.T) {
	t.Parallel()
	ca, other := newTestCA(t, "prod"), newTestCA(t, "prod")
	now := testNow
	server := NewSource(issue(t, ca, RoleServer, "s1", IssuingTTL), WithClock(func() time.Time { return now }))
	client := NewSource(issue(t, ca, RoleClient, "alice", time.Hour), WithClock(func() time.Time { return now }))
	var denied error
	conf := ServerConfig(server, Policy{Roles: Roles(), Names: func(ID) error { return denied }})

	again := resumable(t, conf, client, Policy{})
	out := shake(t, conf, again)
	if out.serverErr != nil || !out.server.DidResume {
		t.Fatalf("control: err %v, resumed %v, want a resumed session", out.serverErr, out.server.DidResume)
	}
	denied = errors.New("on the deny-list")
	if out := shake(t, conf, again); errs.Reason(out.serverErr) != ReasonRefused || out.clientError == nil {
		t.Errorf("denied identity resumed: server %v, client %v", out.serverErr, out.clientError)
	}
	denied = nil

	again = resumable(t, conf, client, Policy{})
	now = now.Add(2 * time.Hour)
	out = shake(t, conf, again)
	if got := ExplainHandshake(out.serverErr, server); errs.Reason(got) != ReasonExpired {
		t.Errorf("expired client resumed: %v, want %s", got, ReasonExpired)
	}
	if got := ExplainHandshake(out.clientError, client); errs.Reason(got) != ReasonExpired {
		t.Errorf("expired client resumed: client sees %v, want %s", got, ReasonExpired)
	}
	now = testNow

	again = resumable(t, conf, client, Policy{})
	if err := server.Set(issue(t, other, RoleServer, "s1", 0)); err != nil {
		t.Fatal(err)
	}
	again.VerifyConnection = nil // so that it is the server that has to notice
	if out := shake(t, conf, again); out.serverErr == nil {
		t.Error("a session outlived the root that it was verified with")
	}
}

func TestResumedSessionIsVerifiedByClient(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	server := NewSource(issue(t, ca, RoleServer, "s1", 0), clockAt(testNow))
	client := NewSource(issue(t, ca, RoleClient, "alice", 0), clockAt(testNow))
	var denied error
	conf := ServerConfig(server, Policy{Roles: Roles()})
	again := resumable(t, conf, client, Policy{Names: func(ID) error { return denied }})
	if out := shake(t, conf, again); out.clientError != nil || !out.client.DidResume {
		t.Fatalf("control: err %v, resumed %v, want a resumed session", out.clientError, out.client.DidResume)
	}
	denied = errors.New("not the one I meant")
	if out := shake(t, conf, again); errs.Reason(out.clientError) != ReasonRefused {
		t.Errorf("client: %v, want %s", out.clientError, ReasonRefused)
	}
}
