package pki

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// TLS alerts (RFC 8446, section 6) that say something about certificates or
// protocols.
const (
	alertHandshakeFailure   tls.AlertError = 40
	alertBadCertificate     tls.AlertError = 42
	alertUnsupportedCert    tls.AlertError = 43
	alertRevoked            tls.AlertError = 44
	alertExpired            tls.AlertError = 45
	alertCertificateUnknown tls.AlertError = 46
	alertUnknownCA          tls.AlertError = 48
	alertAccessDenied       tls.AlertError = 49
	alertProtocolVersion    tls.AlertError = 70
	alertCertificateNeeded  tls.AlertError = 116
	alertNoALPN             tls.AlertError = 120
)

var knownAlerts = []tls.AlertError{
	alertHandshakeFailure, alertBadCertificate, alertUnsupportedCert, alertRevoked, alertExpired,
	alertCertificateUnknown, alertUnknownCA, alertAccessDenied, alertProtocolVersion,
	alertCertificateNeeded, alertNoALPN,
}

// ExplainHandshake turns what went wrong in a handshake into an [errs.Error]
// with a reason and a hint. local is the source that this end dialled or
// listened with.
//
// Under TLS 1.3 a client has finished its handshake before the server looks at
// its certificate: a refusal arrives as an alert from the first Read. So a
// client passes errors of the handshake and of the first Read.
//
// Errors that have nothing to do with TLS come back as they are; nil too.
func ExplainHandshake(err error, local *Source) error {
	if err == nil {
		return nil
	}
	var typed *errs.Error
	if errors.As(err, &typed) {
		return err
	}
	var chain *tls.CertificateVerificationError
	if errors.As(err, &chain) {
		return chainError(chain.Err, chain.UnverifiedCertificates, local.now())
	}
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) {
		return errs.New(codes.Unavailable, ReasonProtocol, "the peer does not speak TLS: %w", err).
			WithHint("check address and port; a server's main port is 7400 unless configured otherwise")
	}
	if alert, ok := remoteAlert(err); ok {
		return explainAlert(alert, err, local)
	}
	if connectionEnded(err) {
		// An alert can get lost when a connection is reset.
		if own := local.Bundle().ValidAt(local.now()); own != nil {
			return own
		}
	}
	return err
}

// remoteAlert finds the alert that the peer sent. crypto/tls has no exported
// type for it outside QUIC, and gRPC passes on nothing but text; the text is
// that of the standard library's table, made by the same function here.
func remoteAlert(err error) (tls.AlertError, bool) {
	text := err.Error()
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		text = op.Error()
	}
	var found tls.AlertError
	longest := 0
	for _, a := range knownAlerts {
		// The longest wins: "unknown certificate" starts "unknown certificate
		// authority" too.
		if s := "remote error: " + a.Error(); len(s) > longest && strings.Contains(text, s) {
			found, longest = a, len(s)
		}
	}
	return found, longest > 0
}

func explainAlert(alert tls.AlertError, err error, local *Source) error {
	b := local.Bundle()
	switch alert {
	case alertNoALPN:
		return errs.New(codes.Unavailable, ReasonProtocol, "the peer offers none of the protocols asked for: %w", err).
			WithHint("check address and port, and that both ends run versions of trivet that fit")
	case alertProtocolVersion, alertHandshakeFailure:
		return errs.New(codes.Unavailable, ReasonProtocol, "no common TLS parameters: %w", err).
			WithHint("trivet speaks TLS 1.3 only; check address and port, and what is between the two ends")
	}
	// Everything else is about our certificate, and our own dates are the one
	// thing that can be checked here.
	if own := b.ValidAt(local.now()); own != nil {
		return own
	}
	switch alert {
	case alertExpired:
		return errs.New(codes.Unauthenticated, ReasonExpired,
			"the peer says that your certificate (%s) is out of date, but it is valid from %s to %s: %w",
			b.ID, stamp(b.NotBefore), stamp(b.NotAfter), err).
			WithHint("compare the clocks of the two machines: here it is %s", stamp(local.now()))
	case alertUnknownCA:
		return errs.New(codes.Unauthenticated, ReasonForeignCA,
			"the peer does not know the CA of your certificate (%s): %w", b.ID, err).WithHint("%s", foreignHint)
	case alertCertificateNeeded:
		return errs.New(codes.Unauthenticated, ReasonNoIdentity,
			"the peer wants a certificate and got none: %w", err).
			WithHint("dial with a bundle of this cluster")
	default:
		return errs.New(codes.PermissionDenied, ReasonRefused,
			"the peer refused your certificate (%s): %w", b.ID, err).
			WithHint("its dates are right, so role %s, cluster %s or this very name is not accepted there; "+
				"the peer's log says which", b.ID.Role, b.ID.Cluster)
	}
}

// connectionEnded tells whether the peer ended the connection.
func connectionEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
