package operatorapi

import (
	"context"

	"trivet/cluster/engine"
	"trivet/fsm"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// Digest is the digest of this server's own state, at its own revision. With a
// revision in the metadata it waits for that one.
func (s *Service) Digest(ctx context.Context, _ *operatorv1.DigestRequest) (*operatorv1.DigestResponse, error) {
	level, seen, err := engine.ReadOptions(ctx)
	if err != nil {
		return nil, err
	}
	if level == engine.Default && seen == 0 {
		level = engine.Stale
	}
	root, err := s.cfg.Core.Read(ctx, level, seen)
	if err != nil {
		return nil, err
	}
	sum := root.Digest()
	return &operatorv1.DigestResponse{Server: s.cfg.Cluster.Self(), Revision: root.Revision(), Schema: fsm.SchemaVersion, Digest: sum[:]}, nil
}

// ListPeers lists the Raft configuration.
func (s *Service) ListPeers(ctx context.Context, _ *operatorv1.ListPeersRequest) (*operatorv1.ListPeersResponse, error) {
	servers, err := s.cfg.Cluster.Servers(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListPeersResponse{Term: s.cfg.Cluster.Term()}
	for _, x := range servers {
		out.Peers = append(out.Peers, &operatorv1.Peer{Id: x.GetId(), Name: x.GetName(), Address: x.GetAddress(), Leader: x.GetLeader(), Voter: x.GetVoter()})
	}
	return out, nil
}

// TransferLeadership hands leadership over.
func (s *Service) TransferLeadership(ctx context.Context, req *operatorv1.TransferLeadershipRequest) (*operatorv1.TransferLeadershipResponse, error) {
	from, leader, err := s.cfg.Cluster.Transfer(ctx, req.GetTo())
	if err != nil {
		return nil, err
	}
	return &operatorv1.TransferLeadershipResponse{From: from, Leader: leader}, nil
}
