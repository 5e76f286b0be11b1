package peerapi

import (
	"bytes"
	"context"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/fsm"
	"trivet/internal/chunks"
	"trivet/internal/errs"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// Voting answers what voters ask of each other.
type Voting interface {
	// ID is this server's.
	ID() string
	// NewestTerm is the newest term that this server has seen or voted in.
	NewestTerm() uint64
	// Evidence takes a voter's evidence of the leader's end and answers with the
	// own.
	Evidence(ctx context.Context, e *peerv1.EvidenceRequest) *peerv1.EvidenceResponse
}

// Members changes the configuration, if this server leads.
type Members interface {
	Join(ctx context.Context, s *peerv1.ServerInfo, replaces string) ([]*peerv1.ServerInfo, error)
	Remove(ctx context.Context, id string, force bool) error
}

// States compares, passes on and replaces the state.
type States interface {
	Digests(from uint64) *peerv1.DigestsResponse
	// State is a snapshot at or above a revision.
	State(ctx context.Context, min uint64) (*fsm.Snapshot, error)
	// Restore puts the state of an archive in the place of the cluster's, if this
	// server leads.
	Restore(ctx context.Context, identity string, archive io.Reader) (*peerv1.RestoreResponse, error)
}

// ConfirmTerm answers at once and without Raft's loop, so that a busy disk
// holds up no read.
func (s *Service) ConfirmTerm(context.Context, *peerv1.ConfirmTermRequest) (*peerv1.ConfirmTermResponse, error) {
	return &peerv1.ConfirmTermResponse{Term: s.cfg.Voting.NewestTerm(), Id: s.cfg.Voting.ID()}, nil
}

// Evidence exchanges what two voters saw of the leader's end.
func (s *Service) Evidence(ctx context.Context, e *peerv1.EvidenceRequest) (*peerv1.EvidenceResponse, error) {
	return s.cfg.Voting.Evidence(ctx, e), nil
}

// Join takes a server into the configuration if this server leads.
func (s *Service) Join(ctx context.Context, req *peerv1.JoinRequest) (*peerv1.JoinResponse, error) {
	if req.GetServer().GetId() == "" || req.GetServer().GetAddress() == "" || req.GetServer().GetName() == "" {
		return nil, errs.New(codes.InvalidArgument, "MISSING_FIELD", "a server joins with an id, a name and an address")
	}
	conf, err := s.cfg.Members.Join(ctx, req.GetServer(), req.GetReplaces())
	if err != nil {
		return nil, err
	}
	return &peerv1.JoinResponse{Configuration: conf}, nil
}

// Remove takes a server out of the configuration if this server leads.
func (s *Service) Remove(ctx context.Context, req *peerv1.RemoveRequest) (*peerv1.RemoveResponse, error) {
	if err := s.cfg.Members.Remove(ctx, req.GetId(), req.GetForce()); err != nil {
		return nil, err
	}
	return new(peerv1.RemoveResponse), nil
}

// Digests lists digests at or above a revision.
func (s *Service) Digests(_ context.Context, req *peerv1.DigestsRequest) (*peerv1.DigestsResponse, error) {
	return s.cfg.States.Digests(req.GetFromRevision()), nil
}

// FetchState streams a snapshot of the state machine.
func (s *Service) FetchState(req *peerv1.FetchStateRequest, stream grpc.ServerStreamingServer[peerv1.StateChunk]) error {
	snap, err := s.cfg.States.State(stream.Context(), req.GetMinRevision())
	if err != nil {
		return err
	}
	_, err = snap.WriteTo(chunks.Writer(func(p []byte) error { return stream.Send(&peerv1.StateChunk{Data: p}) }))
	return err
}

// Restore takes an archive for the cluster if this server leads.
func (s *Service) Restore(stream grpc.ClientStreamingServer[peerv1.RestoreChunk, peerv1.RestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	rest := chunks.Reader(func() ([]byte, error) {
		c, err := stream.Recv()
		return c.GetData(), err
	})
	resp, err := s.cfg.States.Restore(stream.Context(), first.GetIdentity(), io.MultiReader(bytes.NewReader(first.GetData()), rest))
	if err != nil {
		return err
	}
	return stream.SendAndClose(resp)
}
