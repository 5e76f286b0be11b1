package cluster

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"

	"trivet/cluster/membership"
	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

const (
	// leaderPatience bounds the search for a leader that makes a change.
	leaderPatience = 15 * time.Second
	leaderPause    = 50 * time.Millisecond
	// removeServerSince is the command version that knows RemoveServer.
	removeServerSince = 2
)

// members changes the configuration on the leader, for this server's own
// callers and for the others'.
type members struct{ s *Server }

// Join implements peerapi.Members.
func (m members) Join(ctx context.Context, info *peerv1.ServerInfo, replaces string) ([]*peerv1.ServerInfo, error) {
	err := m.s.membership.Join(ctx, membership.Server{
		ID: info.GetId(), Name: info.GetName(), Address: info.GetAddress(), CommandVersion: info.GetCommandVersion(),
	}, replaces)
	if err != nil {
		return nil, memberError(err)
	}
	return m.s.configuration(), nil
}

// Remove implements peerapi.Members.
func (m members) Remove(ctx context.Context, id string, force bool) error {
	return memberError(m.s.membership.Remove(ctx, id, force))
}

// memberError gives the replica's errors the form in which they cross the wire.
func memberError(err error) error {
	var told *errs.Error
	switch {
	case err == nil, errors.As(err, &told):
		return err
	case errors.Is(err, replica.ErrNotLeader):
		return errs.New(codes.Unavailable, "NOT_LEADER", "%w", err)
	case errors.Is(err, replica.ErrMembershipChanged), errors.Is(err, replica.ErrUnknownOutcome):
		return errs.New(codes.Aborted, "MEMBERSHIP_CHANGED", "%w", err).WithHint("look at the servers and try again: trivet operator raft list-peers")
	}
	return err
}

// configuration lists the members as this server knows them. has_state says
// that a server has had a row in the state: it had Raft state then.
func (s *Server) configuration() []*peerv1.ServerInfo {
	list, _, err := s.replica.Members()
	if err != nil {
		return nil
	}
	root := s.machine.Root()
	out := make([]*peerv1.ServerInfo, len(list))
	for i, x := range list {
		row, ok := root.Server(x.ID)
		out[i] = &peerv1.ServerInfo{Id: x.ID, Address: x.Address, Name: row.GetName(), HasState: ok}
	}
	return out
}

// memberServers is how the membership asks other servers.
type memberServers struct{ s *Server }

func (m memberServers) Name(id string) string { return m.s.nameOf(id) }

func (m memberServers) Alive(ctx context.Context, id, address string) error {
	_, err := m.s.askTerm(ctx, replica.Voter{ID: id, Address: address})
	return err
}

func (m memberServers) Reached(ctx context.Context, id, address string, revision uint64) (bool, error) {
	client, err := m.s.pool.Client(address)
	if err != nil {
		return false, err
	}
	resp, err := client.Digests(ctx, &peerv1.DigestsRequest{FromRevision: revision})
	if err != nil {
		return false, err
	}
	return resp.GetId() == id && len(resp.GetDigests()) > 0, nil
}

func (m memberServers) Revision() uint64       { return m.s.machine.Root().Revision() }
func (m memberServers) CommandVersion() uint32 { return m.s.machine.Root().CommandVersion() }
func (m memberServers) Removed(ctx context.Context, id string) {
	m.s.forgetServer(ctx, id)
}

// nameOf turns a server id into its name: by what it said, or by its row.
func (s *Server) nameOf(id string) string {
	if name := s.dir.name(id); name != id {
		return name
	}
	if row, ok := s.machine.Root().Server(id); ok && row.GetName() != "" {
		return row.GetName()
	}
	return id
}

// forgetServer removes the row of a server that is no member any more, and the
// answers kept for it, as soon as all servers know the command.
func (s *Server) forgetServer(ctx context.Context, id string) {
	row, ok := s.machine.Root().Server(id)
	if !ok || s.engine.Version() < removeServerSince {
		return
	}
	_, err := s.engine.Propose(ctx, s.cfg.Source.Bundle().ID.String(), nil, &commandv1.Command{
		Op: &commandv1.Command_RemoveServer{RemoveServer: &commandv1.RemoveServer{Id: id}},
	})
	if err != nil {
		s.log.Debug("the row of a server that left stays for now", "server", row.GetName(), "id", id, "err", err)
	}
}

// sweepServers removes the rows of servers that are no members: those that were
// removed while the leader died, and those of another cluster whose state was
// restored here.
func (s *Server) sweepServers(ctx context.Context) {
	list, _, err := s.replica.Members()
	if err != nil || s.replica.LeaderTerm() == 0 {
		return
	}
	is := make(map[string]bool, len(list))
	for _, x := range list {
		is[x.ID] = true
	}
	for row := range s.machine.Root().Servers {
		if !is[row.GetId()] {
			s.forgetServer(ctx, row.GetId())
		}
	}
}

// atLeader makes a change on the leader, here or there, and goes on with the
// next leader when that one is none any more.
func (s *Server) atLeader(ctx context.Context, here func() error, there func(peersvc.PeerClient) error) error {
	limit := time.NewTimer(leaderPatience)
	defer limit.Stop()
	for {
		id, address := s.replica.Leader()
		var err error
		switch {
		case id == s.replica.ID():
			err = here()
		case id == "":
			err = errs.New(codes.Unavailable, "NO_LEADER", "no leader is known").
				WithHint("a majority of the servers must be up and connected: trivet status").WithRetry(time.Second)
		default:
			var client peersvc.PeerClient
			if client, err = s.pool.Client(address); err == nil {
				err = there(client)
			}
		}
		if reason := errs.Reason(err); err == nil || reason != "NO_LEADER" && reason != "NOT_LEADER" && !errors.Is(err, replica.ErrNotLeader) {
			return err
		}
		pause := time.NewTimer(leaderPause)
		select {
		case <-pause.C:
		case <-limit.C:
			pause.Stop()
			return err
		case <-ctx.Done():
			pause.Stop()
			return errs.New(errs.Code(ctx.Err()), "NO_LEADER", "%w", errors.Join(ctx.Err(), err))
		}
	}
}

// AddPeer takes a server that runs and waits into the configuration.
func (v *clusterView) AddPeer(ctx context.Context, req *operatorv1.AddPeerRequest) (*operatorv1.Peer, error) {
	s := (*Server)(v)
	info, err := v.introduced(ctx, req.GetAddress())
	if err != nil {
		return nil, err
	}
	if req.GetId() != "" && req.GetId() != info.GetId() {
		return nil, errs.New(codes.FailedPrecondition, "OTHER_SERVER", "at %s there is server %s, not %s", req.GetAddress(), info.GetId(), req.GetId()).
			WithHint("leave --id out, or look at the server's log for its id")
	}
	replaces := req.GetReplaces()
	if replaces != "" {
		if id, ok := v.memberNamed(replaces); ok {
			replaces = id
		}
	}
	err = s.atLeader(ctx, func() error {
		_, err := members{s}.Join(ctx, info, replaces)
		return err
	}, func(c peersvc.PeerClient) error {
		_, err := c.Join(ctx, &peerv1.JoinRequest{Server: info, Replaces: replaces})
		return err
	})
	if err != nil {
		return nil, err
	}
	return &operatorv1.Peer{Id: info.GetId(), Name: info.GetName(), Address: info.GetAddress(), Voter: true}, nil
}

// introduced asks a server at an address who it is.
func (v *clusterView) introduced(ctx context.Context, address string) (*peerv1.ServerInfo, error) {
	client, err := v.pool.Client(address)
	if err != nil {
		return nil, err
	}
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	resp, err := client.Hello(hctx, &peerv1.HelloRequest{Server: (*Server)(v).info()})
	if err != nil {
		return nil, errs.New(codes.Unavailable, "SERVER_UNREACHABLE", "no server of this cluster answers at %s: %w", address, err).
			WithHint("start it there with `join` in its configuration and a certificate of this cluster")
	}
	info := resp.GetServer()
	if info.GetAddress() != address {
		// The members have to dial what the server says of itself.
		v.log.Info("a server is called by another address than its own", "called", address, "own", info.GetAddress())
	}
	return info, nil
}

// memberNamed finds a member by id or name; false: none, or several of that
// name.
func (v *clusterView) memberNamed(who string) (string, bool) {
	list, _, err := v.replica.Members()
	if err != nil {
		return "", false
	}
	found := ""
	for _, x := range list {
		if x.ID == who {
			return who, true
		}
		if (*Server)(v).nameOf(x.ID) == who {
			if found != "" {
				return "", false
			}
			found = x.ID
		}
	}
	return found, found != ""
}

// RemovePeer takes a server out of the configuration, by id or name; with force
// also when that leaves no majority that can be reached.
func (v *clusterView) RemovePeer(ctx context.Context, who string, force bool) (*operatorv1.Peer, error) {
	s := (*Server)(v)
	id, ok := v.memberNamed(who)
	if !ok {
		return nil, errs.New(codes.NotFound, "SERVER_NOT_FOUND", "there is no server %q in the configuration, or several of that name", who).
			WithHint("`trivet operator raft list-peers` shows the servers and their ids")
	}
	list, _, err := v.replica.Members()
	if err != nil {
		return nil, err
	}
	peer := &operatorv1.Peer{Id: id, Name: s.nameOf(id)}
	for _, x := range list {
		if x.ID == id {
			peer.Address, peer.Voter = x.Address, x.Voter
		}
	}
	err = s.atLeader(ctx, func() error {
		return members{s}.Remove(ctx, id, force)
	}, func(c peersvc.PeerClient) error {
		_, err := c.Remove(ctx, &peerv1.RemoveRequest{Id: id, Force: force})
		return err
	})
	if err != nil {
		return nil, err
	}
	return peer, nil
}

// RaftInfo is what this server knows of its own Raft.
func (v *clusterView) RaftInfo() *operatorv1.RaftInfoResponse {
	i := v.replica.Info()
	root := v.machine.Root()
	leader, _ := v.replica.Leader()
	out := &operatorv1.RaftInfoResponse{
		Id: v.replica.ID(), Name: v.cfg.Name, State: i.State, Term: i.Term, LeaderId: leader,
		FirstIndex: i.FirstIndex, LastIndex: i.LastIndex, CommitIndex: i.CommitIndex, AppliedIndex: i.AppliedIndex,
		Revision: root.Revision(), SnapshotIndex: i.Snapshot.Index, SnapshotTerm: i.Snapshot.Term,
		LogStore: v.replica.LogStore(), LogBytes: uint64(max(0, v.replica.DiskStats().LogBytes)),
		CommandVersion: fsm.CommandVersion, Schema: fsm.SchemaVersion, RestoreEpoch: root.Meta().GetRestoreEpoch(),
		ClusterId: root.Meta().GetClusterId(),
	}
	if leader != "" {
		out.LeaderName = (*Server)(v).nameOf(leader)
	}
	if last := v.replica.LastContact(); i.State != "leader" && !last.IsZero() {
		out.LastContact = int64(time.Since(last))
	}
	return out
}
