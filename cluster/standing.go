package cluster

import (
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// standing is where this server stands in the cluster, as far as it and the
// members know.
type standing struct {
	mu sync.Mutex
	// denied are the members that say that this server is none; guarded by mu.
	denied map[string]bool
	// waiting: a member answered, and this server is no member and has no state.
	waiting bool
	// was: this server has been a member since it started; guarded by mu.
	was bool
	// gone: this server was removed; it stays so until it is started anew.
	gone atomic.Bool

	// cleared is closed once it is certain that this server has forgotten
	// nothing: Raft's connections are refused until then.
	cleared   chan struct{}
	clearOnce sync.Once
	// fatal takes the error after which the server has to end.
	fatal chan error
}

func newStanding() *standing {
	return &standing{denied: make(map[string]bool), cleared: make(chan struct{}), fatal: make(chan error, 1)}
}

// waits says whether this server is still to be taken in by the members.
func (st *standing) waits() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.waiting
}

func (st *standing) clear() { st.clearOnce.Do(func() { close(st.cleared) }) }

func (st *standing) isClear() bool {
	select {
	case <-st.cleared:
		return true
	default:
		return false
	}
}

// judge looks at what a server said of this one's membership.
func (s *Server) judge(resp *peerv1.HelloResponse) {
	if len(resp.GetConfiguration()) == 0 {
		return
	}
	st, from := s.standing, resp.GetServer().GetId()
	st.mu.Lock()
	defer st.mu.Unlock()
	if resp.GetMember() {
		delete(st.denied, from)
		st.waiting = false
	} else {
		st.denied[from] = true
		st.waiting = !s.replica.IsMember()
	}
	if st.isClear() {
		return
	}
	for _, x := range resp.GetConfiguration() {
		if x.GetId() == s.replica.ID() && x.GetHasState() {
			// It would vote again in terms in which it has voted, and acknowledge
			// anew what it has lost.
			err := errs.New(codes.FailedPrecondition, "STATE_LOST",
				"%s knows server %s as one with state, but the data directory %s has none", resp.GetServer().GetName(), s.replica.ID(), s.cfg.DataDir).
				WithHint("bring its files back, or empty the directory, start the server and have it replace the old one: "+
					"trivet operator raft add-peer %s --replaces %s", s.cfg.Advertise, s.replica.ID())
			select {
			case st.fatal <- err:
			default:
			}
			return
		}
	}
	st.clear()
}

// notice ends this server's part in elections and its service once it knows
// that it was removed.
func (s *Server) notice() {
	if s.standing.gone.Load() || !s.removed() {
		return
	}
	s.standing.gone.Store(true)
	s.replica.Silence()
	s.log.Error("this server was removed from the cluster: stop it, and do not start it again on its data", "id", s.replica.ID())
}

// errRemoved is the answer of a server that is no member any more.
func errRemoved() error {
	return errs.New(codes.Unavailable, "SERVER_REMOVED", "this server was removed from the cluster").WithHint("ask another server")
}

// removed says whether a majority of the members that this server knows, or its
// own log, says that it is no member any more.
func (s *Server) removed() bool {
	list, _, err := s.replica.Members()
	if err != nil || len(list) == 0 {
		return false
	}
	s.standing.mu.Lock()
	defer s.standing.mu.Unlock()
	member, denied := s.replica.IsMember(), 0
	if member && !s.standing.was {
		// What was said before it became one is over.
		s.standing.was = true
		clear(s.standing.denied)
	}
	for _, x := range list {
		if x.ID != s.replica.ID() && s.standing.denied[x.ID] {
			denied++
		}
	}
	// A server that joins reads configurations of the time before it.
	return s.standing.was && !member || (s.standing.was || s.replica.HasState()) && denied >= len(list)/2+1
}

func (s *Server) checkStanding() Check {
	c := Check{Name: "membership", Level: LevelOK, Message: "a member of the cluster"}
	waiting := s.standing.waits()
	switch {
	case s.standing.gone.Load():
		c.Level, c.Message = LevelCritical, "this server was removed from the cluster"
		c.Hint = "stop it; to take it in again, empty its data directory and start it with `join` in its configuration"
	case waiting:
		c.Level, c.Message = LevelCritical, fmt.Sprintf("this server (id %s) is no member of the cluster yet", s.replica.ID())
		c.Hint = fmt.Sprintf("an operator takes it in: trivet operator raft add-peer %s; if it lost its data, with --replaces and the id of the server that it was", s.cfg.Advertise)
	case !s.replica.IsMember():
		c.Level, c.Message = LevelCritical, "waiting for the other first servers"
		c.Hint = "start all servers that `peers` lists"
	}
	return c
}

// helloFrom takes what another server says of itself and answers.
func (s *Server) helloFrom(info *peerv1.ServerInfo) *peerv1.HelloResponse {
	s.dir.meet(info)
	out := &peerv1.HelloResponse{Server: s.info(), Configuration: s.configuration()}
	for _, x := range out.GetConfiguration() {
		out.Member = out.GetMember() || x.GetId() == info.GetId()
	}
	return out
}
