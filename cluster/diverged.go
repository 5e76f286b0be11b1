package cluster

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
)

// errDiverged is the answer of a server whose state is not that of the others.
func errDiverged() error {
	return errs.New(codes.Unavailable, "STATE_DIVERGED", "this server's state differs from that of the majority; it takes theirs over").
		WithHint("ask another server")
}

// errNotMember is the answer of a server that waits to be taken in. It has
// nothing to answer from, and the members know of no call that it would pass on.
func errNotMember() error {
	return errs.New(codes.Unavailable, "NOT_A_MEMBER", "this server is no member of the cluster yet").
		WithHint("ask another server; an operator takes this one in: trivet operator raft add-peer")
}

// spared may be asked of a server whose state is wrong: servers among
// themselves, and what an operator needs to see what is going on.
var spared = []string{
	"/trivet.peer.v1.Peer/", "/grpc.health.v1.Health/", "/trivet.operator.v1.Operator/Status", "/trivet.operator.v1.Operator/Health",
	"/trivet.operator.v1.Operator/Digest", "/trivet.operator.v1.Operator/ListPeers", "/trivet.operator.v1.Operator/RaftInfo",
	"/trivet.operator.v1.Operator/Collect", "/trivet.operator.v1.Operator/Profile", "/trivet.operator.v1.Operator/TransferLeadership",
}

func (s *Server) serves(method string) error {
	diverged, gone, waits := s.monitor.Diverged(), s.standing.gone.Load(), s.standing.waits()
	if !diverged && !gone && !waits {
		return nil
	}
	for _, prefix := range spared {
		if strings.HasPrefix(method, prefix) {
			return nil
		}
	}
	switch {
	case gone:
		return errRemoved()
	case waits:
		return errNotMember()
	}
	return errDiverged()
}

func (s *Server) divergedUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if err := s.serves(info.FullMethod); err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *Server) divergedStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := s.serves(info.FullMethod); err != nil {
		return err
	}
	return next(srv, stream)
}
