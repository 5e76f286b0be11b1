package operatorapi

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"trivet/cluster/authz"
	"trivet/cluster/settings"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

// PutConfig writes one key.
func (s *Service) PutConfig(ctx context.Context, req *operatorv1.PutConfigRequest) (*operatorv1.PutConfigResponse, error) {
	cmd, err := putConfig(req)
	if err != nil {
		return nil, err
	}
	res, err := s.propose(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return &operatorv1.PutConfigResponse{Revision: res.GetRevision()}, nil
}

func putConfig(req *operatorv1.PutConfigRequest) (*commandv1.Command, error) {
	if err := settings.Check(req.GetKey(), req.GetValue()); err != nil {
		return nil, err
	}
	return &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{
		Key: req.GetKey(), Value: req.GetValue(), IfModifyRevision: req.IfModifyRevision,
	}}}, nil
}

// ListConfig lists the keys; their values are asked for one by one.
func (s *Service) ListConfig(ctx context.Context, req *operatorv1.ListConfigRequest) (*operatorv1.ListConfigResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	out := &operatorv1.ListConfigResponse{Revision: root.Revision()}
	out.Keys, out.NextPageToken, err = page(root.Configs, req.GetPage(), (*commandv1.ConfigRow).GetKey,
		func(row *commandv1.ConfigRow) (*operatorv1.ConfigKey, bool) {
			return &operatorv1.ConfigKey{Key: row.GetKey(), ModifyRevision: row.GetModifyRevision(), Bytes: uint64(len(row.GetValue()))}, true
		})
	return out, err
}

// DeleteConfig removes one key. One that is not there is no error, unless the
// request says which revision it expects.
func (s *Service) DeleteConfig(ctx context.Context, req *operatorv1.DeleteConfigRequest) (*operatorv1.DeleteConfigResponse, error) {
	res, err := s.propose(ctx, &commandv1.Command{Op: &commandv1.Command_DeleteConfig{DeleteConfig: &commandv1.DeleteConfig{
		Key: req.GetKey(), IfModifyRevision: req.IfModifyRevision,
	}}})
	if err != nil {
		return nil, err
	}
	return &operatorv1.DeleteConfigResponse{Revision: res.GetRevision()}, nil
}

// streamInFlight bounds the writes of one PutConfigStream that are under way;
// beyond it the stream is not read.
const streamInFlight = 128

// PutConfigStream writes many keys; answers come in the order of requests. A
// refused write ends the stream.
func (s *Service) PutConfigStream(stream grpc.BidiStreamingServer[operatorv1.PutConfigRequest, operatorv1.PutConfigResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	type answer struct {
		rev uint64
		err error
	}
	pending := make(chan chan answer, streamInFlight)
	received := make(chan error, 1)
	identity := authz.Caller(ctx).String()
	go func() {
		defer close(pending)
		for {
			req, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			ch := make(chan answer, 1)
			select {
			case pending <- ch:
			case <-ctx.Done():
				received <- ctx.Err()
				return
			}
			go func() {
				var res *commandv1.Result
				cmd, err := putConfig(req)
				if err == nil {
					res, err = s.cfg.Core.Propose(ctx, identity, nil, cmd)
				}
				ch <- answer{res.GetRevision(), err}
			}()
		}
	}()
	for ch := range pending {
		a := <-ch
		if a.err != nil {
			return a.err
		}
		if err := stream.Send(&operatorv1.PutConfigResponse{Revision: a.rev}); err != nil {
			return err
		}
	}
	if err := <-received; !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// GetConfig reads one key.
func (s *Service) GetConfig(ctx context.Context, req *operatorv1.GetConfigRequest) (*operatorv1.GetConfigResponse, error) {
	root, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	row, ok := root.Config(req.GetKey())
	if !ok {
		return nil, errs.New(codes.NotFound, "CONFIG_NOT_FOUND", "config key %q not found", req.GetKey()).
			WithHint("`trivet operator config list` shows those that are set")
	}
	return &operatorv1.GetConfigResponse{Key: row.GetKey(), Value: row.GetValue(), ModifyRevision: row.GetModifyRevision(), Revision: root.Revision()}, nil
}
