package operatorapi

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"trivet/cluster/authz"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// SaveSnapshot sends an archive of the whole state.
func (s *Service) SaveSnapshot(_ *operatorv1.SaveSnapshotRequest, stream grpc.ServerStreamingServer[operatorv1.SnapshotChunk]) error {
	out := bufio.NewWriterSize(chunks(func(p []byte) error { return stream.Send(&operatorv1.SnapshotChunk{Data: p}) }), chunkBytes)
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

// chunks sends what is written. A message may be kept by its receiver in the
// same process, so that the bytes are copied.
type chunks func([]byte) error

func (c chunks) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := min(len(rest), chunkBytes)
		if err := c(append([]byte(nil), rest[:n]...)); err != nil {
			return len(p) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

// RestoreSnapshot replaces the state by that of an archive.
func (s *Service) RestoreSnapshot(stream grpc.ClientStreamingServer[operatorv1.SnapshotChunk, operatorv1.RestoreSnapshotResponse]) error {
	in := &chunkReader{recv: func() ([]byte, error) {
		c, err := stream.Recv()
		return c.GetData(), err
	}}
	resp, err := s.cfg.Cluster.RestoreSnapshot(stream.Context(), authz.Caller(stream.Context()).String(), in)
	if err != nil {
		return err
	}
	s.record(stream.Context(), "snapshot.restore", s.cfg.Cluster.Self(), fmt.Sprintf("revision %d, restore epoch %d", resp.GetRevision(), resp.GetRestoreEpoch()))
	return stream.SendAndClose(resp)
}

// chunkReader reads the messages of a stream as one.
type chunkReader struct {
	recv func() ([]byte, error)
	rest []byte
	err  error
}

func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		if r.rest, r.err = r.recv(); r.err != nil && !errors.Is(r.err, io.EOF) {
			return 0, r.err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
