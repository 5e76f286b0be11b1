package client

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"trivet/internal/errs"
	"trivet/internal/pki"
)

// Flow control of a link. Fixed windows switch off gRPC's estimator, which
// pings; these keep a 50 ms path busy at 1 Gbit/s with a few streams, and
// bound what one stalled stream holds.
const (
	streamWindow = 1 << 20
	linkWindow   = 8 << 20
)

// Link is one gRPC connection to one server. It is one TCP connection and
// never redials: when that is gone the link is gone, and its Pool makes
// another. It implements grpc.ClientConnInterface for calls that must go to
// this very server; errors are *errs.Error.
type Link struct {
	// Address is what was dialled.
	Address string
	// Server is the server's name, from its certificate.
	Server string

	pool   *Pool
	cc     *grpc.ClientConn
	socket *socket
	// serving is what the server last said about itself; a server that has no
	// health service counts as serving.
	serving atomic.Bool

	retireOnce sync.Once
	retired    chan struct{}
	cause      error // why; set before retired is closed
}

// Retired is closed when the link must not be used for anything new: its
// server is gone, hung or going. Streams that exist may still end in peace.
func (l *Link) Retired() <-chan struct{} { return l.retired }

// Cause says why the link was retired; nil before that.
func (l *Link) Cause() error {
	select {
	case <-l.retired:
		return l.cause
	default:
		return nil
	}
}

// broken tells whether the connection has failed, which shows before the link
// is retired.
func (l *Link) broken() bool {
	select {
	case <-l.retired:
		return true
	case <-l.socket.gone:
		return true
	default:
		return l.socket.lastError() != nil
	}
}

func (l *Link) retire(cause error) {
	l.retireOnce.Do(func() {
		l.cause = cause
		close(l.retired)
	})
}

// Invoke makes one unary call on this link, once.
func (l *Link) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	var header metadata.MD
	opts = append(opts[:len(opts):len(opts)], grpc.Header(&header))
	err := l.cc.Invoke(l.pool.outgoing(ctx), method, args, reply, opts...)
	l.pool.revision.note(header)
	return l.explain(err)
}

// NewStream opens a stream on this link.
func (l *Link) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := l.cc.NewStream(l.pool.outgoing(ctx), desc, method, opts...)
	if err != nil {
		return nil, l.explain(err)
	}
	return &linkStream{ClientStream: s, link: l}, nil
}

// explain makes an error of gRPC fit for users: what the TLS layer saw says
// more than "connection error: desc = ...".
func (l *Link) explain(err error) error {
	if err == nil {
		return nil
	}
	e := errs.From(err)
	fromServer := e.Reason != "UNAVAILABLE" // it has details
	if e.Code != codes.Unavailable || fromServer || l.socket.lastError() == nil {
		return e
	}
	if told := errs.From(l.pool.explain(l.socket.lastError())); told.Code == codes.Unauthenticated || told.Code == codes.PermissionDenied {
		return told
	}
	return errs.New(codes.Unavailable, ReasonConnectionLost, "the connection to server %s (%s) broke: %w",
		l.Server, l.Address, l.socket.lastError())
}

// linkStream notes the revision that a stream was answered from.
type linkStream struct {
	grpc.ClientStream
	link  *Link
	noted bool // RecvMsg has one caller at a time
}

func (s *linkStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil && !s.noted {
		s.noted = true
		if header, err := s.Header(); err == nil { // there already: a message came
			s.link.pool.revision.note(header)
		}
	}
	return err
}

// dial connects to one server and makes sure that it answers. The link is not
// watched yet.
func (p *Pool) dial(ctx context.Context, addr string) (*Link, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.opts.AttemptTimeout,
		errs.New(codes.Unavailable, ReasonNoAnswer, "no answer within %s", p.opts.AttemptTimeout))
	defer cancel()
	raw, err := p.opts.Dialer(ctx, addr)
	if err != nil {
		return nil, dialCause(ctx, err)
	}
	conn := tls.Client(raw, p.tls)
	if err := conn.HandshakeContext(ctx); err != nil {
		err = p.explain(dialCause(ctx, err))
		return nil, errors.Join(err, ignoreClosed(raw.Close()))
	}
	l := &Link{
		Address: addr, pool: p, retired: make(chan struct{}),
		socket: &socket{Conn: conn, gone: make(chan struct{}), born: time.Now()},
	}
	if id, err := pki.PeerID(conn.ConnectionState()); err == nil {
		l.Server = id.Name
	}
	if l.cc, err = grpc.NewClient("passthrough:///"+addr, l.dialOptions()...); err != nil {
		return nil, errors.Join(err, l.socket.Close())
	}
	if err := l.ping(ctx); err != nil {
		l.close()
		return nil, dialCause(ctx, err)
	}
	return l, nil
}

func (l *Link) dialOptions() []grpc.DialOption {
	var taken atomic.Bool
	return []grpc.DialOption{
		// TLS is done already: by ourselves, to know why it did not work.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if taken.Swap(true) {
				return nil, errs.New(codes.Unavailable, ReasonConnectionLost, "the link is used up")
			}
			return l.socket, nil
		}),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(), // retries are the pool's, which can change servers
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(linkWindow),
	}
}

// ping asks the server whether it serves. Any answer proves that it lives: one
// without a health service, or that keeps it from us, counts as serving.
// gRPC's own keepalive cannot be used, it pings every 10 s at most.
func (l *Link) ping(ctx context.Context) error {
	answer, err := grpc_health_v1.NewHealthClient(l.cc).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	switch errs.Code(err) {
	case codes.OK:
		l.serving.Store(answer.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		return nil
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return l.explain(err)
	}
	l.serving.Store(true)
	return nil
}

// watch returns when the link has to be retired, with the cause; nil when ctx
// ended.
func (l *Link) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	left := make(chan struct{})
	go func() {
		defer close(left)
		l.awaitLeft(ctx)
	}()
	defer func() { cancel(); <-left }()
	tick := time.NewTicker(l.pool.opts.PingAfter)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-left:
			if ctx.Err() != nil {
				return nil
			}
			return l.leftCause()
		case now := <-tick.C:
			if l.serving.Load() && now.Sub(l.socket.lastRead()) < l.pool.opts.PingAfter {
				continue // bytes are coming, which proves as much
			}
			if err := l.pingOrGiveUp(ctx); err != nil {
				return err
			}
			if !l.serving.Load() && l.pool.servingElsewhere(ctx, l) {
				return errs.New(codes.Unavailable, ReasonNotServing,
					"server %s (%s) has lost its peers", l.Server, l.Address)
			}
		}
	}
}

// awaitLeft returns when gRPC has left the state READY, which it does with the
// end of the connection and with a GOAWAY, or when ctx ends. gRPC lets calls
// through a moment before it publishes the state.
func (l *Link) awaitLeft(ctx context.Context) {
	for {
		state := l.cc.GetState()
		if state != connectivity.Connecting && state != connectivity.Ready {
			return
		}
		if !l.cc.WaitForStateChange(ctx, state) {
			return
		}
	}
}

func (l *Link) pingOrGiveUp(ctx context.Context) error {
	pingCtx, cancel := context.WithTimeout(ctx, l.pool.opts.PingTimeout)
	defer cancel()
	err := l.ping(pingCtx)
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case pingCtx.Err() != nil:
		// It may have been busy with sending: bytes count.
		if time.Since(l.socket.lastRead()) < l.pool.opts.PingTimeout {
			return nil
		}
		return errs.New(codes.Unavailable, ReasonNoAnswer, "server %s (%s) has not answered for %s",
			l.Server, l.Address, l.pool.opts.PingTimeout)
	}
	return err
}

// leftCause is why gRPC left the state READY.
func (l *Link) leftCause() error {
	if err := l.socket.lastError(); err != nil {
		return errs.New(codes.Unavailable, ReasonConnectionLost, "server %s (%s) closed the connection: %w",
			l.Server, l.Address, err)
	}
	select {
	case <-l.socket.gone:
		return errs.New(codes.Unavailable, ReasonConnectionLost, "the connection to server %s (%s) broke",
			l.Server, l.Address)
	default:
		return errs.New(codes.Unavailable, ReasonDraining, "server %s (%s) is shutting down", l.Server, l.Address)
	}
}

// close ends the connection and what uses it.
func (l *Link) close() {
	// Both only report that it is closed already.
	_ = l.cc.Close()
	_ = l.socket.Close()
}
