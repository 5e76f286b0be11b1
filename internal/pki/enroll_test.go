package pki

import (
	"crypto/x509"
	"testing"
	"time"

	"trivet/internal/errs"
)

func enrollServer(t *testing.T, ca *CA, now time.Time) *Source {
	t.Helper()
	return NewSource(issue(t, ca, RoleServer, "s1", 30*24*time.Hour), clockAt(now))
}

func TestEnrollmentNeedsNoCertificate(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	server := ServerConfig(enrollServer(t, ca, testNow), Policy{ALPN: []string{"h2", ALPNEnroll}, Roles: Roles()})
	clock := func() time.Time { return testNow }
	got := shake(t, server, EnrollConfig(RootHash(ca.Root()), clock))
	if got.serverErr != nil || got.clientError != nil || got.server.NegotiatedProtocol != ALPNEnroll {
		t.Fatalf("got %+v", got)
	}
	if _, err := PeerID(got.server); errs.Reason(err) != ReasonNoIdentity {
		t.Errorf("a peer without a certificate is %v", err)
	}
	got = shake(t, server, EnrollConfig(RootHash(foreign.Root()), clock))
	if errs.Reason(got.clientError) != ReasonForeignCA {
		t.Errorf("another cluster's token: %v, want %s", got.clientError, ReasonForeignCA)
	}
	late := func() time.Time { return testNow.AddDate(0, 2, 0) }
	if got = shake(t, server, EnrollConfig(RootHash(ca.Root()), late)); errs.Reason(got.clientError) != ReasonExpired {
		t.Errorf("a server whose certificate ended: %v, want %s", got.clientError, ReasonExpired)
	}
	// The way in is for this protocol only, and the policy has to open it.
	conf := EnrollConfig(RootHash(ca.Root()), clock)
	conf.NextProtos = []string{"h2"}
	if got = shake(t, server, conf); got.serverErr == nil {
		t.Error("a peer without a certificate came in by h2")
	}
	shut := ServerConfig(enrollServer(t, ca, testNow), Policy{ALPN: []string{"h2"}, Roles: Roles()})
	if got = shake(t, shut, EnrollConfig(RootHash(ca.Root()), clock)); got.serverErr == nil {
		t.Error("a server that does not enrol let a peer without a certificate in")
	}
}

func TestEnrollmentIsRefusedToOthersThanServers(t *testing.T) {
	t.Parallel()
	ca := newTestCA(t, "prod")
	node := NewSource(issue(t, ca, RoleNode, "n1", time.Hour), clockAt(testNow))
	server := ServerConfig(node, Policy{ALPN: []string{ALPNEnroll}, Roles: Roles()})
	got := shake(t, server, EnrollConfig(RootHash(ca.Root()), func() time.Time { return testNow }))
	if errs.Reason(got.clientError) != ReasonWrongRole {
		t.Errorf("a node that plays a server: %v, want %s", got.clientError, ReasonWrongRole)
	}
}

// TestWhoMayRenew: certificates that ended in their role's window are good for
// the enrolment protocol and for nothing else.
func TestWhoMayRenew(t *testing.T) {
	t.Parallel()
	ca, foreign := newTestCA(t, "prod"), newTestCA(t, "prod")
	now := testNow.Add(10 * 24 * time.Hour)
	leaf := func(role Role, ended time.Duration) *Bundle {
		return issue(t, ca, role, "x", now.Sub(testNow)-ended)
	}
	uri := "spiffe://prod/client/x"
	cases := []struct {
		name  string
		b     *Bundle
		enrol string // reason; empty: let in
		h2    bool
	}{
		{"valid", leaf(RoleClient, -time.Hour), "", true},
		{"client, 71 h", leaf(RoleClient, 71*time.Hour), "", false},
		{"client, 73 h", leaf(RoleClient, 73*time.Hour), ReasonExpired, false},
		{"viewer, 71 h", leaf(RoleViewer, 71*time.Hour), "", false},
		{"operator, 23 h", leaf(RoleOperator, 23*time.Hour), "", false},
		{"operator, 25 h", leaf(RoleOperator, 25*time.Hour), ReasonExpired, false},
		{"debug, a minute", leaf(RoleDebug, time.Minute), ReasonExpired, false},
		{"node, 6 d", leaf(RoleNode, 6*24*time.Hour), "", false},
		{"node, 8 d", leaf(RoleNode, 8*24*time.Hour), ReasonExpired, false},
		{"server, 6 d", leaf(RoleServer, 6*24*time.Hour), "", false},
		{"not yet valid", forge(t, ca, ca, forged{uris: []string{uri}, notBefore: now.Add(time.Hour), notAfter: now.Add(2 * time.Hour)}), ReasonNotYetValid, false},
		{"foreign CA", forge(t, foreign, ca, forged{uris: []string{uri}, notAfter: now.Add(time.Hour)}), ReasonForeignCA, false},
		{"foreign CA, ended", forge(t, foreign, ca, forged{uris: []string{uri}, notAfter: now.Add(-time.Hour)}), ReasonForeignCA, false},
		{"self-signed", forge(t, ca, ca, forged{uris: []string{uri}, notAfter: now.Add(time.Hour), selfSigned: true}), ReasonForeignCA, false},
		{"no name", forge(t, ca, ca, forged{notAfter: now.Add(time.Hour)}), ReasonNoIdentity, false},
		{"two names", forge(t, ca, ca, forged{uris: []string{uri, "spiffe://prod/operator/x"}, notAfter: now.Add(time.Hour)}), ReasonNoIdentity, false},
		{"wrong name", forge(t, ca, ca, forged{uris: []string{"https://prod/client/x"}, notAfter: now.Add(time.Hour)}), ReasonNoIdentity, false},
		{"unknown role", forge(t, ca, ca, forged{uris: []string{"spiffe://prod/king/x"}, notAfter: now.Add(time.Hour)}), ReasonNoIdentity, false},
		{"another cluster", forge(t, ca, ca, forged{uris: []string{"spiffe://test/client/x"}, notAfter: now.Add(time.Hour)}), ReasonWrongCluster, false},
		{"wrong usage", forge(t, ca, ca, forged{uris: []string{uri}, notAfter: now.Add(time.Hour), usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), ReasonWrongUsage, false},
		{"a CA", forge(t, ca, ca, forged{uris: []string{uri}, notAfter: now.Add(time.Hour), isCA: true}), ReasonInvalid, false},
	}
	server := ServerConfig(enrollServer(t, ca, now), Policy{ALPN: []string{"h2", ALPNEnroll}, Roles: Roles()})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			src := NewSource(c.b, clockAt(now))
			got := shake(t, server, ClientConfig(src, Policy{ALPN: []string{ALPNEnroll}}))
			if errs.Reason(ExplainHandshake(got.serverErr, src)) != c.enrol {
				t.Errorf("renew: %v, want %q", got.serverErr, c.enrol)
			}
			if c.enrol == "" && !got.server.PeerCertificates[0].Equal(c.b.Leaf()) {
				t.Error("the server does not know who it is")
			}
			got = shake(t, server, ClientConfig(src, Policy{ALPN: []string{"h2"}}))
			if (got.serverErr == nil) != c.h2 {
				t.Errorf("h2: %v", got.serverErr)
			}
		})
	}
}
