// Package pki owns the identities of a trivet cluster: the certificate
// authority, the bundles that processes carry, and the TLS configurations that
// check a peer.
//
// # What it promises
//
// An identity is one SPIFFE URI in a leaf certificate,
// spiffe://<cluster>/<role>/<name>. Every handshake of a configuration made
// here, a resumed one too, verifies the peer's full chain against the
// cluster's root with dates and extended key usage, then the cluster name and
// the role. Only TLS 1.3 is spoken. A refusal is an [errs.Error] with one of
// the Reason constants and a hint, and [ExplainHandshake] gives the refused
// side the same kind of error.
//
// # What it does not do
//
// It does not decide who gets a certificate (tokens and approval belong to
// the servers), holds no deny-list (see Policy.Names), watches no files (call
// Source.Reload), dials nobody (Source.Renew is given the way to ask) and seals
// no keys.
//
// # Files
//
// A CA directory has root.crt, root.key, issuing.crt and issuing.key. The root
// key may be, and should be, taken off line: nothing but the renewal of the
// issuing CA needs it. A bundle directory has ca.crt (one root, or two while
// roots change), tls.crt (leaf, then issuing CA) and tls.key. Files are 0600
// and directories 0700.
//
// # Concurrency
//
// All types are safe for use by several goroutines. CA and Bundle never change
// once made; a Source swaps its bundle as a whole, and a handshake sees either
// the old one or the new one.
//
// # Clock
//
// Functions that need the time take it as an argument; configurations ask the
// clock of their Source.
//
//	src, err := pki.OpenSource("/etc/trivet/bundle")
//	if err != nil {
//		return err
//	}
//	conf := pki.ServerConfig(src, pki.Policy{
//		ALPN:     []string{"h2", "trivet-raft/1"},
//		Roles:    pki.Roles(),
//		RolesFor: map[string][]pki.Role{"trivet-raft/1": {pki.RoleServer}},
//	})
package pki
