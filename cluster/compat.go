package cluster

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"trivet/cluster/authz"
	"trivet/internal/errs"
	"trivet/proto/telepresence/managersvc"
	"trivet/tunnel"
)

// Compat is the listener for published peers, which have no certificates. It is
// there only when it was asked for.
type Compat struct {
	// Listen is its address; empty: there is none.
	Listen string `json:"listen,omitempty" doc:"address of a plaintext listener for published peers without certificates; empty: none"`
	// Clients and Agents say who is served.
	Clients bool `json:"clients,omitempty" doc:"serve published clients there"`
	Agents  bool `json:"agents,omitempty" doc:"serve published agents there"`
	// Namespaces are those that such peers may see and use; "*": all.
	Namespaces []string `json:"namespaces,omitempty" doc:"namespaces that those peers may see and use; '*' means all"`
}

// validate says what is wrong.
func (c Compat) validate() []error {
	if c.Listen == "" {
		return nil
	}
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf("compat: "+format, args...)) }
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		bad("listen %q is not host:port: %w", c.Listen, err)
	}
	if !c.Clients && !c.Agents {
		bad("neither clients nor agents are to be served")
	}
	if len(c.Namespaces) == 0 {
		bad("no namespace is named; \"*\" means all")
	}
	return problems
}

// compat serves the listener.
type compatListener struct {
	front *front
	guard *authz.CompatGuard
	lis   net.Listener
}

// compatConnections bounds the connections of peers without certificates; more
// wait until one ends.
const compatConnections = 4096

// listenCompat opens the listener, if one was asked for.
func (s *Server) listenCompat() error {
	c := s.cfg.Compat
	if c.Listen == "" {
		return nil
	}
	lis, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return errs.New(codes.FailedPrecondition, "COMPAT_LISTEN", "listen for peers without certificates: %w", err).
			WithHint("correct compat.listen in the server's configuration")
	}
	guard := authz.NewCompatGuard(&authz.Confinement{Clients: c.Clients, Agents: c.Agents, Namespaces: c.Namespaces},
		s.cfg.Source.Bundle().ID.Cluster, s.log)
	s.compat = &compatListener{guard: guard, lis: netutil.LimitListener(lis, compatConnections), front: newFront(func() *grpc.Server {
		g := grpc.NewServer(
			grpc.Creds(insecure.NewCredentials()),
			grpc.ChainUnaryInterceptor(s.rpcs.unary, s.showRevision, guard.Unary, s.divergedUnary, s.limiter.Unary),
			grpc.ChainStreamInterceptor(s.rpcs.stream, guard.Stream, s.divergedStream, s.limiter.Stream),
			grpc.ForceServerCodecV2(tunnel.Codec{}),
			grpc.MaxRecvMsgSize(maxMessage),
			grpc.MaxConcurrentStreams(maxStreams),
			// Published peers ping as they like.
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
			grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingIdle, Timeout: pingTimeout}),
			grpc.WaitForHandlers(true),
		)
		managersvc.RegisterManagerServer(g, s.manager)
		healthpb.RegisterHealthServer(g, health.NewServer())
		return g
	})}
	s.log.Warn("peers without certificates are served", "listen", lis.Addr().String(), "clients", c.Clients, "agents", c.Agents, "namespaces", c.Namespaces)
	return nil
}

// CompatAddr is where peers without certificates are served; nil: nowhere.
func (s *Server) CompatAddr() net.Addr {
	if s.compat == nil {
		return nil
	}
	return s.compat.lis.Addr()
}

func (s *Server) serveCompat(ctx context.Context) {
	if s.compat == nil {
		return
	}
	s.wg.Go(func() {
		if err := s.compat.front.serve(s.compat.lis); err != nil && ctx.Err() == nil {
			s.log.Error("the listener for peers without certificates ended", "err", err)
		}
	})
}

// fronts are the gRPC servers that peers are connected to.
func (s *Server) fronts() []*front {
	out := []*front{s.front}
	if s.compat != nil {
		out = append(out, s.compat.front)
	}
	return out
}

// isSendingAway says whether streams end because this server ends them.
func (s *Server) isSendingAway() bool {
	for _, f := range s.fronts() {
		if f.isSendingAway() {
			return true
		}
	}
	return false
}

// sendAway sends all peers to other servers.
func (s *Server) sendAway() {
	var wg sync.WaitGroup
	for _, f := range s.fronts() {
		wg.Go(func() { f.away(awayGrace) })
	}
	wg.Wait()
}

// stopFronts ends all calls, gracefully for as long as grace.
func (s *Server) stopFronts(grace time.Duration) {
	if s.compat != nil {
		_ = s.compat.lis.Close() // nothing is left to do about it
	}
	var wg sync.WaitGroup
	for _, f := range s.fronts() {
		wg.Go(func() { f.stop(grace) })
	}
	wg.Wait()
}
