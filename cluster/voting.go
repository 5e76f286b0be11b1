package cluster

import (
	"context"
	"fmt"

	"trivet/cluster/deathwatch"
	"trivet/cluster/replica"
	peerv1 "trivet/proto/trivet/peer/v1"
)

// askTerm is the leader's question to a voter before a linearizable read.
func (s *Server) askTerm(ctx context.Context, v replica.Voter) (uint64, error) {
	client, err := s.pool.Client(v.Address)
	if err != nil {
		return 0, err
	}
	resp, err := client.ConfirmTerm(ctx, &peerv1.ConfirmTermRequest{})
	if err != nil {
		return 0, fmt.Errorf("ask server %s for its term: %w", v.ID, err)
	}
	if resp.GetId() != v.ID {
		return 0, fmt.Errorf("server %s answers in the place of %s", resp.GetId(), v.ID)
	}
	return resp.GetTerm(), nil
}

// tell passes evidence of the leader's end to another voter.
func (s *Server) tell(ctx context.Context, to deathwatch.Server, e deathwatch.Evidence) (deathwatch.Evidence, error) {
	client, err := s.pool.Client(to.Address)
	if err != nil {
		return deathwatch.Evidence{}, err
	}
	resp, err := client.Evidence(ctx, &peerv1.EvidenceRequest{
		Id: e.From, Term: e.Term, Leader: e.Leader, LastTerm: e.LastTerm, LastIndex: e.LastIndex,
	})
	if err != nil {
		return deathwatch.Evidence{}, fmt.Errorf("tell server %s of the leader's end: %w", to.ID, err)
	}
	return deathwatch.Evidence{
		From: resp.GetId(), Leader: e.Leader, Term: e.Term, Seen: resp.GetSeen(),
		LastTerm: resp.GetLastTerm(), LastIndex: resp.GetLastIndex(), Newest: resp.GetTerm(),
	}, nil
}

// voting answers the other voters.
type voting struct{ s *Server }

// ID implements peerapi.Voting.
func (v voting) ID() string { return v.s.replica.ID() }

// NewestTerm implements peerapi.Voting.
func (v voting) NewestTerm() uint64 { return v.s.replica.NewestTerm() }

// Evidence implements peerapi.Voting.
func (v voting) Evidence(ctx context.Context, e *peerv1.EvidenceRequest) *peerv1.EvidenceResponse {
	own := v.s.watch.Hear(ctx, deathwatch.Evidence{
		From: e.GetId(), Leader: e.GetLeader(), Term: e.GetTerm(), Seen: true, LastTerm: e.GetLastTerm(), LastIndex: e.GetLastIndex(),
	})
	return &peerv1.EvidenceResponse{
		Id: own.From, Seen: own.Seen, LastTerm: own.LastTerm, LastIndex: own.LastIndex, Term: own.Newest,
	}
}
