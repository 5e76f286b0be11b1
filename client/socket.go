package client

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socket is the connection below gRPC. It knows what gRPC does not tell: when
// bytes came last, why reading ended, and that it ended.
type socket struct {
	net.Conn
	gone      chan struct{} // closed when the connection is
	closeOnce sync.Once
	closeErr  error
	born      time.Time
	readAt    atomic.Int64 // nanoseconds since born: no clock change matters
	readErr   atomic.Pointer[error]
}

func (s *socket) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if n > 0 {
		s.readAt.Store(int64(time.Since(s.born)))
	}
	if err != nil && !errors.Is(err, net.ErrClosed) {
		s.readErr.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (s *socket) Close() error {
	s.closeOnce.Do(func() {
		s.closeErr = s.Conn.Close()
		close(s.gone)
	})
	return s.closeErr
}

func (s *socket) lastRead() time.Time { return s.born.Add(time.Duration(s.readAt.Load())) }

func (s *socket) lastError() error {
	if err := s.readErr.Load(); err != nil {
		return *err
	}
	return nil
}

// dialCause prefers the cause of ctx, which says what a bare "i/o timeout"
// does not.
func dialCause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
