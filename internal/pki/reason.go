package pki

import (
	"crypto/x509"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// Reasons of the errors that this package makes. They are stable: programs may
// branch on them.
const (
	// ReasonExpired: a certificate of the chain is past its end.
	ReasonExpired = "CERT_EXPIRED"
	// ReasonNotYetValid: a certificate of the chain starts in the future,
	// which mostly means that a clock is wrong.
	ReasonNotYetValid = "CERT_NOT_YET_VALID"
	// ReasonForeignCA: no chain leads to the cluster's root.
	ReasonForeignCA = "CERT_FOREIGN_CA"
	// ReasonWrongCluster: the identity names another cluster.
	ReasonWrongCluster = "CERT_WRONG_CLUSTER"
	// ReasonWrongRole: the identity's role may not be here.
	ReasonWrongRole = "CERT_WRONG_ROLE"
	// ReasonNoIdentity: no certificate, or none with exactly one valid
	// SPIFFE name.
	ReasonNoIdentity = "CERT_NO_IDENTITY"
	// ReasonWrongUsage: the certificate may not be used on this end of a
	// connection.
	ReasonWrongUsage = "CERT_WRONG_USAGE"
	// ReasonRefused: the peer refused the certificate and the alert does not
	// say why.
	ReasonRefused = "CERT_REFUSED"
	// ReasonInvalid: a certificate, key or request cannot be used at all.
	ReasonInvalid = "CERT_INVALID"
	// ReasonKeyMismatch: a key does not belong to its certificate.
	ReasonKeyMismatch = "CERT_KEY_MISMATCH"
	// ReasonLifetime: a certificate was asked for that would outlive its CA.
	ReasonLifetime = "CERT_LIFETIME"
	// ReasonFilesExist: a write would replace existing files.
	ReasonFilesExist = "CERT_FILES_EXIST"
	// ReasonFilesMissing: a file of a bundle or a CA is not there.
	ReasonFilesMissing = "CERT_FILES_MISSING"
	// ReasonNotStored: a certificate was renewed but could not be written.
	ReasonNotStored = "CERT_NOT_STORED"
	// ReasonProtocol: the ends share no protocol, or the peer speaks no TLS.
	ReasonProtocol = "TLS_PROTOCOL_MISMATCH"
)

// Skew is how far back the start of a new certificate is set, so that a peer
// whose clock is behind takes it at once.
const Skew = 5 * time.Minute

const foreignHint = "the two ends belong to different clusters, or to the same name initialised twice: " +
	"use a bundle that this cluster's CA issued, with the whole tls.crt"

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// owner names a certificate in an error: its identity where it has one.
func owner(cert *x509.Certificate) string {
	if id, err := CertID(cert); err == nil {
		return "certificate of " + id.String()
	}
	if cn := cert.Subject.CommonName; cn != "" {
		return fmt.Sprintf("certificate of %.64q", cn)
	}
	return "certificate with serial " + cert.SerialNumber.String()
}

// checkDates returns an error when now is outside the validity of cert, which
// subject names ("your certificate").
func checkDates(cert *x509.Certificate, now time.Time, subject, hint string) error {
	switch {
	case now.After(cert.NotAfter):
		return errs.New(codes.Unauthenticated, ReasonExpired,
			"%s expired at %s", subject, stamp(cert.NotAfter)).WithHint("%s", hint)
	case now.Before(cert.NotBefore):
		return errs.New(codes.Unauthenticated, ReasonNotYetValid,
			"%s is not valid before %s, and the time here is %s", subject, stamp(cert.NotBefore), stamp(now)).
			WithHint("compare the clocks of this machine and of the one that issued the certificate")
	}
	return nil
}

// renewHint says how the holder of id gets a new certificate; dir may be
// empty.
func renewHint(id ID, dir string) string {
	where := ""
	if dir != "" {
		where = " in " + dir
	}
	switch id.Role {
	case RoleClient, RoleOperator, RoleViewer, RoleDebug:
		return "run: trivet login --token TOKEN (an operator makes one with: trivet token create), " +
			"or replace the bundle" + where
	default:
		return "issue a new bundle for " + id.String() + " and replace the one" + where
	}
}
