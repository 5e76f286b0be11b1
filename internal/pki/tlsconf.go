package pki

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync/atomic"
)

// Policy says which verified peers a configuration admits.
type Policy struct {
	// ALPN lists the application protocols, best first. A server takes one of
	// them; a client offers all.
	ALPN []string
	// Roles are the roles that a peer may have. Empty: a server admits nobody,
	// a client accepts servers.
	Roles []Role
	// RolesFor replaces Roles when the protocol that is its key was
	// negotiated, so that one port can keep a protocol to servers.
	RolesFor map[string][]Role
	// Names, if set, has the last word on an identity that passed all other
	// checks: a deny-list, or "the node I meant to dial". An [errs.Error] is
	// passed on as it is. It runs inside the handshake and must not block.
	Names func(ID) error
	// NamesFor replaces Names when the protocol that is its key was negotiated.
	NamesFor map[string]func(ID) error
}

func (p Policy) namesFor(alpn string) func(ID) error {
	if names, ok := p.NamesFor[alpn]; ok {
		return names
	}
	return p.Names
}

func (p Policy) rolesFor(alpn string) []Role {
	if roles, ok := p.RolesFor[alpn]; ok {
		return roles
	}
	return p.Roles
}

// ServerConfig returns a configuration that demands and verifies a client
// certificate. It follows src: a reload changes the certificate shown and the
// root trusted from the next handshake on, without a restart.
//
// crypto/tls verifies the chain first, because only then does the client get
// an alert that tells expired from unknown CA; VerifyConnection then repeats
// the chain with the rest of the checks, because crypto/tls alone would let a
// resumed session live on after its certificate or root is gone.
//
// With ALPNEnroll among the protocols, peers that ask for it are let in without
// a certificate, or with one that ended lately: see [ALPNEnroll].
func ServerConfig(src *Source, p Policy) *tls.Config {
	build := func(b *Bundle) *tls.Config {
		return &tls.Config{
			MinVersion: tls.VersionTLS13,
			NextProtos: slices.Clone(p.ALPN),
			Time:       src.now,
			ClientAuth: tls.RequireAndVerifyClientCert,
			ClientCAs:  b.roots,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
				return &src.Bundle().cert, nil
			},
			VerifyConnection: func(cs tls.ConnectionState) error {
				return verifyPeer(cs, src.Bundle(), p, x509.ExtKeyUsageClientAuth, src.now())
			},
		}
	}
	type perBundle struct {
		bundle *Bundle
		conf   *tls.Config
	}
	var cache atomic.Pointer[perBundle]
	first := src.Bundle()
	conf := build(first)
	// ClientCAs has no callback of its own: this is how a new root gets in.
	// Session ticket keys stay those of the outer configuration.
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		b := src.Bundle()
		if b == first {
			return nil, nil
		}
		c := cache.Load()
		if c == nil || c.bundle != b {
			c = &perBundle{bundle: b, conf: build(b)}
			cache.Store(c)
		}
		return c.conf, nil
	}
	if slices.Contains(p.ALPN, ALPNEnroll) {
		conf.GetConfigForClient = divertEnroll(src, conf.GetConfigForClient)
	}
	return conf
}

// ClientConfig returns a configuration to dial with. Who may answer is decided
// by identity, not by host name: addresses of servers change, and a name in
// DNS proves nothing that the role in a certificate does not prove better.
//
// InsecureSkipVerify turns off only the host-name based check of crypto/tls.
// It is not insecure here: VerifyConnection, which crypto/tls calls in every
// handshake before any application data, verifies the whole chain against the
// cluster's root with dates and usage, then cluster and role. An attacker
// would need a server certificate of this very cluster.
func ClientConfig(src *Source, p Policy) *tls.Config {
	if len(p.Roles) == 0 {
		p.Roles = []Role{RoleServer}
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		NextProtos:         slices.Clone(p.ALPN),
		Time:               src.now,
		InsecureSkipVerify: true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &src.Bundle().cert, nil
		},
		VerifyConnection: func(cs tls.ConnectionState) error {
			return verifyPeer(cs, src.Bundle(), p, x509.ExtKeyUsageServerAuth, src.now())
		},
	}
}
