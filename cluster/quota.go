package cluster

import (
	"crypto/tls"
	"math"

	"trivet/internal/pki"
)

// connectionQuota names the peer of a connection and how many it may have
// open. Servers, and connections without a certificate, which cannot stay, are
// not bounded here.
func (s *Server) connectionQuota(state tls.ConnectionState) (name string, limit int) {
	id, err := pki.PeerID(state)
	if err != nil || id.Role == pki.RoleServer || s.cfg.Quotas.Connections < 0 {
		return "", 0
	}
	return id.String(), s.cfg.Quotas.Connections
}

// unbounded turns "no bound" into a number that is never reached.
func unbounded(n int) int {
	if n < 0 {
		return math.MaxInt32
	}
	return n
}
