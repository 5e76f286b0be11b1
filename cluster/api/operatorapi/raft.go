package operatorapi

import (
	"context"

	"google.golang.org/grpc/codes"

	"trivet/cluster/authz"
	"trivet/cluster/engine"
	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
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

// AddPeer takes a server into the configuration.
func (s *Service) AddPeer(ctx context.Context, req *operatorv1.AddPeerRequest) (*operatorv1.AddPeerResponse, error) {
	p, err := s.cfg.Cluster.AddPeer(ctx, req)
	if err != nil {
		return nil, err
	}
	s.record(ctx, "server.add", p.GetName(), p.GetId())
	return &operatorv1.AddPeerResponse{Peer: p}, nil
}

// RemovePeer takes a server out of the configuration.
func (s *Service) RemovePeer(ctx context.Context, req *operatorv1.RemovePeerRequest) (*operatorv1.RemovePeerResponse, error) {
	if req.GetId() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "id must not be empty")
	}
	p, err := s.cfg.Cluster.RemovePeer(ctx, req.GetId(), req.GetForce())
	if err != nil {
		return nil, err
	}
	s.record(ctx, "server.leave", p.GetName(), p.GetId())
	return &operatorv1.RemovePeerResponse{Peer: p}, nil
}

// RaftInfo is what this server knows of its own Raft.
func (s *Service) RaftInfo(context.Context, *operatorv1.RaftInfoRequest) (*operatorv1.RaftInfoResponse, error) {
	return s.cfg.Cluster.RaftInfo(), nil
}

// record puts something that a person did, and that no command tells of, on
// record. It is done already, so that an error of the record changes nothing.
func (s *Service) record(ctx context.Context, action, subject, detail string) {
	_, _ = s.cfg.Core.Propose(ctx, authz.Caller(ctx).String(), nil, &commandv1.Command{Op: &commandv1.Command_RecordAudit{
		RecordAudit: &commandv1.RecordAudit{
			Class: commandv1.AuditClass_AUDIT_CLASS_SECURITY, Action: action, Subject: subject, Detail: detail,
		},
	}})
}
