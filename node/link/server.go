package link

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/proto/telepresence/managersvc"
)

// Server is one server of a Pool.
type Server struct {
	addr string
	dial func() (*grpc.ClientConn, error)

	mu      sync.Mutex
	control *grpc.ClientConn // guarded by mu; nil until used
	data    *grpc.ClientConn // guarded by mu; nil until used
	probing bool             // guarded by mu
	closed  bool             // guarded by mu
}

var errPoolClosed = status.Error(codes.Canceled, "the node is stopping")

// Addr returns the server's address.
func (s *Server) Addr() string { return s.addr }

// Control returns the connection for everything but tunnels. Calls fail at
// once while the server cannot be reached.
func (s *Server) Control() (grpc.ClientConnInterface, error) { return s.conn(&s.control) }

// Data returns the connection for tunnels.
func (s *Server) Data() (grpc.ClientConnInterface, error) { return s.conn(&s.data) }

func (s *Server) conn(slot **grpc.ClientConn) (grpc.ClientConnInterface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errPoolClosed
	}
	if *slot == nil {
		c, err := s.dial()
		if err != nil {
			return nil, fmt.Errorf("connect to server %s: %w", s.addr, err)
		}
		*slot = c
	}
	return *slot, nil
}

// startProbe tells whether the server is in use and no probe is under way, and
// if so notes that one is.
func (s *Server) startProbe() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.probing || s.closed || s.control == nil || s.control.GetState() != connectivity.Ready {
		return false
	}
	s.probing = true
	return true
}

func (s *Server) endProbe() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probing = false
}

// ping asks for a sign of life.
func (s *Server) ping(ctx context.Context) error {
	c, err := s.Control()
	if err != nil {
		return err
	}
	_, err = managersvc.NewManagerClient(c).Version(ctx, &emptypb.Empty{})
	return err
}

// reset ends the connections, and with them every call on them. The next use
// makes new ones.
func (s *Server) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.drop()
}

// drop is called with mu held.
func (s *Server) drop() {
	for _, slot := range []**grpc.ClientConn{&s.control, &s.data} {
		if *slot != nil {
			// Closing a connection twice is its only error.
			_ = (*slot).Close()
			*slot = nil
		}
	}
}

// IsGone tells whether err says that the server, or the way to it, is of no use
// for now, so that another one may do better. Errors that say something about
// the request are not of that kind.
func IsGone(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted, codes.Unknown, codes.Internal:
		return true
	}
	return false
}
