package cluster

// Escalate says that the actors of the present term cannot go on.
func (s *Server) Escalate(err error) { s.escalate(s.replica.LeaderTerm(), err) }

// AdminAddress is where health and metrics are.
func (s *Server) AdminAddress() string { return s.admin.ln.Addr().String() }
