package operatorapi

import (
	"bufio"
	"fmt"

	"google.golang.org/grpc"

	"trivet/cluster/authz"
	"trivet/internal/chunks"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// SaveSnapshot sends an archive of the whole state.
func (s *Service) SaveSnapshot(_ *operatorv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[operatorv1.SnapshotChunk]) error {
	out := bufio.NewWriterSize(chunks.Writer(func(p []byte) error { return stream.Send(&operatorv1.SnapshotChunk{Data: p}) }), chunks.Size)
	meta, err := s.cfg.Cluster.SaveSnapshot(stream.Context(), out)
	if err != nil {
		return err
	}
	if err := out.Flush(); err != nil {
		return err
	}
	s.record(stream.Context(), "snapshot.save", s.cfg.Cluster.Self(), fmt.Sprintf("revision %d", meta.Revision))
	return nil
}

// RestoreSnapshot replaces the state by that of an archive.
func (s *Service) RestoreSnapshot(stream grpc.ClientStreamingServer[operatorv1.SnapshotChunk, operatorv1.RestoreSnapshotResponse]) error {
	in := chunks.Reader(func() ([]byte, error) {
		c, err := stream.Recv()
		return c.GetData(), err
	})
	resp, err := s.cfg.Cluster.RestoreSnapshot(stream.Context(), authz.Caller(stream.Context()).String(), in)
	if err != nil {
		return err
	}
	s.record(stream.Context(), "snapshot.restore", s.cfg.Cluster.Self(), fmt.Sprintf("revision %d, restore epoch %d", resp.GetRevision(), resp.GetRestoreEpoch()))
	return stream.SendAndClose(resp)
}
