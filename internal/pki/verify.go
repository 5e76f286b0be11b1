package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// verifyChain checks certs[0] with the rest as intermediates: dates, chain to
// one of roots, usage. The error has a reason.
func verifyChain(certs []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, now time.Time) error {
	intermediates := x509.NewCertPool()
	for _, c := range certs[1:] {
		intermediates.AddCert(c)
	}
	_, err := certs[0].Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return chainError(err, certs, now)
	}
	return nil
}

// chainError gives an error of crypto/x509 about certs its reason.
func chainError(err error, certs []*x509.Certificate, now time.Time) error {
	// An expired issuing CA reaches us as "unknown authority", the cause being
	// unexported; so the dates of all that the peer sent are looked at first.
	for _, c := range certs {
		hint := "its holder needs a new certificate; if it has one, compare the clocks of the two machines"
		if c.IsCA {
			hint = "renew the issuing CA (trivet ca rotate) and issue new bundles"
		}
		if err := checkDates(c, now, owner(c), hint); err != nil {
			return err
		}
	}
	name := "certificate"
	if len(certs) > 0 {
		name = owner(certs[0])
	}
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &unknown):
		return errs.New(codes.Unauthenticated, ReasonForeignCA,
			"%s does not lead to this cluster's root: %w", name, err).WithHint("%s", foreignHint)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return errs.New(codes.Unauthenticated, ReasonWrongUsage,
			"%s is not for this end of a connection: %w", name, err).
			WithHint("only servers and nodes have certificates to listen with")
	default:
		return errs.New(codes.Unauthenticated, ReasonInvalid, "verify %s: %w", name, err).
			WithHint("use a certificate that the trivet CA issued")
	}
}

// verifyPeer is the one check of a peer, for both ends and for full and
// resumed handshakes.
func verifyPeer(cs tls.ConnectionState, b *Bundle, p Policy, usage x509.ExtKeyUsage, now time.Time) error {
	if len(cs.PeerCertificates) == 0 {
		return noCertificate()
	}
	if err := verifyChain(cs.PeerCertificates, b.roots, usage, now); err != nil {
		return err
	}
	leaf := cs.PeerCertificates[0]
	id, err := CertID(leaf)
	if err != nil {
		return err
	}
	if leaf.IsCA {
		return errs.New(codes.Unauthenticated, ReasonInvalid, "%s is a CA", owner(leaf)).
			WithHint("use a leaf certificate")
	}
	if id.Cluster != b.ID.Cluster {
		return errs.New(codes.Unauthenticated, ReasonWrongCluster,
			"%s belongs to cluster %q, this is %q", owner(leaf), id.Cluster, b.ID.Cluster).
			WithHint("use a bundle of cluster %s", b.ID.Cluster)
	}
	if roles := p.rolesFor(cs.NegotiatedProtocol); !slices.Contains(roles, id.Role) {
		return errs.New(codes.PermissionDenied, ReasonWrongRole,
			"%s has role %s, which may not be here", owner(leaf), id.Role).
			WithHint("accepted here: %s", joinRoles(roles))
	}
	names := p.namesFor(cs.NegotiatedProtocol)
	if names == nil {
		return nil
	}
	if err := names(id); err != nil {
		var typed *errs.Error
		if errors.As(err, &typed) {
			return err
		}
		return errs.New(codes.PermissionDenied, ReasonRefused, "%s is refused: %w", owner(leaf), err)
	}
	return nil
}
