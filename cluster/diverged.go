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

// spared may be asked of a server whose state is wrong: servers among
// themselves, and what an operator needs to see what is going on.
var spared = []string{
	"/trivet.peer.v1.Peer/", "/grpc.health.v1.Health/", "/trivet.operator.v1.Operator/Status", "/trivet.operator.v1.Operator/Health",
	"/trivet.operator.v1.Operator/Digest", "/trivet.operator.v1.Operator/ListPeers", "/trivet.operator.v1.Operator/RaftInfo",
	"/trivet.operator.v1.Operator/Collect", "/trivet.operator.v1.Operator/Profile", "/trivet.operator.v1.Operator/TransferLeadership",
}

func (s *Server) serves(method string) error {
	diverged, gone := s.monitor.Diverged(), s.standing.gone.Load()
	if !diverged && !gone {
		return nil
	}
	for _, prefix := range spared {
		if strings.HasPrefix(method, prefix) {
			return nil
		}
	}
	if gone {
		return errRemoved()
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
