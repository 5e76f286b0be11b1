package link

import (
	"context"
	"strconv"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// revisionKey is the metadata, of requests and of answers, that carries the
// revision of the manager's state.
const revisionKey = "trivet-revision"

// revision is the highest one seen in any answer.
type revision struct{ highest atomic.Uint64 }

// ask adds the revision to an outgoing call.
func (r *revision) ask(ctx context.Context) context.Context {
	n := r.highest.Load()
	if n == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, revisionKey, strconv.FormatUint(n, 10))
}

// learn notes what the headers of an answer say.
func (r *revision) learn(md metadata.MD) {
	for _, text := range md.Get(revisionKey) {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			continue // a peer without revisions may use the word for its own
		}
		for old := r.highest.Load(); n > old && !r.highest.CompareAndSwap(old, n); {
			old = r.highest.Load()
		}
	}
}

func (r *revision) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	var header metadata.MD
	err := invoke(r.ask(ctx), method, req, reply, cc, append(opts, grpc.Header(&header))...)
	r.learn(header)
	return err
}

func (r *revision) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(r.ask(ctx), desc, cc, method, opts...)
	if err != nil || desc.ClientStreams {
		// Tunnels carry bytes, and Sync has a fence of its own.
		return s, err
	}
	return &learningStream{ClientStream: s, revision: r}, nil
}

// learningStream reads the headers once they are there, with the first message.
type learningStream struct {
	grpc.ClientStream
	revision *revision
	learned  bool // of the one goroutine that receives
}

func (s *learningStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && !s.learned {
		s.learned = true
		if md, headerErr := s.Header(); headerErr == nil {
			s.revision.learn(md)
		}
	}
	return err
}
