package portmux

import (
	"strings"
)

// RelayPreamble is what the relay's raw protocol starts with. Connections that
// start so are recognised, and counted apart, without a handler too.
const RelayPreamble = "TRVT"

// tlsHandshake is the content type of a TLS record that starts a handshake
// (RFC 8446, section 5.1), and so the first byte of a TLS connection.
const tlsHandshake = 0x16

// httpStarts are the first four bytes of plain HTTP requests; "PRI " is HTTP/2
// without TLS.
var httpStarts = []string{"GET ", "HEAD", "POST", "PUT ", "DELE", "CONN", "OPTI", "TRAC", "PATC", "PRI "}

// verdict is what the first bytes of a connection say.
type verdict struct {
	more   bool   // too few bytes
	tls    bool   // a handshake
	raw    string // the raw prefix that matched
	reason Reason // none of these
}

// sniff judges the first bytes of a connection, at least one.
func sniff(b []byte, rawPrefixes []string) verdict {
	if b[0] == tlsHandshake {
		return verdict{tls: true}
	}
	s, more := string(b), false
	for _, p := range rawPrefixes {
		if strings.HasPrefix(s, p) {
			return verdict{raw: p}
		}
		more = more || strings.HasPrefix(p, s)
	}
	for _, p := range httpStarts {
		if strings.HasPrefix(s, p) {
			return verdict{reason: ReasonHTTP}
		}
		more = more || strings.HasPrefix(p, s)
	}
	if more {
		return verdict{more: true}
	}
	return verdict{reason: ReasonUnknown}
}
