package operatorapi

import (
	"bytes"
	"context"
	"runtime/pprof"
	"runtime/trace"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"trivet/internal/chunks"
	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
)

const (
	// Profiles that take time.
	defaultProfile = 10 * time.Second
	maxProfile     = 5 * time.Minute
)

// Health is this server's view of itself. It never needs a leader.
func (s *Service) Health(context.Context, *operatorv1.HealthRequest) (*operatorv1.HealthResponse, error) {
	return &operatorv1.HealthResponse{Server: s.cfg.Cluster.Self(), Checks: s.cfg.Cluster.Health(), Time: timestamppb.Now()}, nil
}

// Collect sends this server's part of a support bundle.
func (s *Service) Collect(req *operatorv1.CollectRequest, stream grpc.ServerStreamingServer[operatorv1.CollectResponse]) error {
	emit := func(name string, data []byte) error {
		for first := true; first || len(data) > 0; first = false {
			n := min(len(data), chunks.Size)
			if err := stream.Send(&operatorv1.CollectResponse{Name: name, Data: data[:n]}); err != nil {
				return err
			}
			data = data[n:]
		}
		return nil
	}
	if err := s.cfg.Cluster.Collect(stream.Context(), emit); err != nil {
		return err
	}
	for _, kind := range []string{"heap", "goroutine", "mutex", "block"} {
		data, err := profile(stream.Context(), kind, 0)
		if err != nil {
			return err
		}
		if err := emit(kind+".pprof", data); err != nil {
			return err
		}
	}
	if req.GetCpuProfile() <= 0 {
		return nil
	}
	data, err := profile(stream.Context(), "cpu", time.Duration(req.GetCpuProfile()))
	if err != nil {
		return err
	}
	return emit("cpu.pprof", data)
}

// Profile sends a profile of this server's process.
func (s *Service) Profile(req *operatorv1.ProfileRequest, stream grpc.ServerStreamingServer[operatorv1.ProfileChunk]) error {
	data, err := profile(stream.Context(), req.GetKind(), time.Duration(req.GetDuration()))
	if err != nil {
		return err
	}
	return chunks.Copy(func(p []byte) error { return stream.Send(&operatorv1.ProfileChunk{Data: p}) }, bytes.NewReader(data))
}

// timed admits one profile that takes time at once: the runtime has only one
// of each.
var timed sync.Mutex

func profile(ctx context.Context, kind string, d time.Duration) ([]byte, error) {
	switch kind {
	case "cpu", "trace":
		return timedProfile(ctx, kind, d)
	case "heap", "goroutine", "mutex", "block", "allocs":
		var buf bytes.Buffer
		if err := pprof.Lookup(kind).WriteTo(&buf, 0); err != nil {
			return nil, errs.New(codes.Internal, "PROFILE_FAILED", "write profile %s: %w", kind, err)
		}
		return buf.Bytes(), nil
	}
	return nil, errs.New(codes.InvalidArgument, "UNKNOWN_PROFILE", "there is no profile %q", kind).
		WithHint("profiles are cpu, heap, goroutine, mutex, block, allocs and trace")
}

func timedProfile(ctx context.Context, kind string, d time.Duration) ([]byte, error) {
	if d == 0 {
		d = defaultProfile
	}
	if d < 0 || d > maxProfile {
		return nil, errs.New(codes.InvalidArgument, "BAD_DURATION", "a profile of %s is not possible", d).WithHint("take at most %s", maxProfile)
	}
	if !timed.TryLock() {
		return nil, errs.New(codes.FailedPrecondition, "PROFILE_BUSY", "another profile of this server is being taken").WithHint("try again when it is done")
	}
	defer timed.Unlock()
	var buf bytes.Buffer
	start, stop := pprof.StartCPUProfile, pprof.StopCPUProfile
	if kind == "trace" {
		start, stop = trace.Start, trace.Stop
	}
	if err := start(&buf); err != nil {
		return nil, errs.New(codes.FailedPrecondition, "PROFILE_FAILED", "start profile %s: %w", kind, err)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	stop()
	return buf.Bytes(), ctx.Err()
}
