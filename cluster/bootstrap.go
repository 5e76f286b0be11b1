package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "trivet/proto/trivet/peer/v1"
)

const (
	helloEvery   = 100 * time.Millisecond
	helloTimeout = 2 * time.Second
	// helloIdle is how often servers repeat their hello once all is settled: it
	// carries new boot ids and finds servers that moved.
	helloIdle = 5 * time.Second
)

func (s *Server) info() *peerv1.ServerInfo {
	return &peerv1.ServerInfo{
		Id: s.replica.ID(), Name: s.cfg.Name, Address: s.cfg.Advertise, BootId: s.bootID,
		ClusterId: s.cfg.Source.Bundle().ID.Cluster, HasState: s.hasState.Load(),
	}
}

// introduce says hello to the other first servers for as long as the server
// runs and bootstraps the cluster once all of them answered that they have no
// state either.
func (s *Server) introduce(ctx context.Context) {
	defer s.wg.Done()
	names := make([]string, 0, len(s.cfg.Peers))
	for _, p := range s.cfg.Peers {
		names = append(names, p.Name)
	}
	s.dir.meet(s.info())
	for {
		for _, p := range s.cfg.Peers {
			if p.Name != s.cfg.Name {
				s.hello(ctx, p)
			}
		}
		wait := helloEvery
		if s.hasState.Load() {
			wait = helloIdle
		} else if s.bootstrap(names) {
			wait = helloEvery
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Server) hello(ctx context.Context, p Peer) {
	client, err := s.pool.Client(p.Address)
	if err != nil {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	resp, err := client.Hello(hctx, &peerv1.HelloRequest{Server: s.info()})
	if err != nil {
		s.log.Debug("a server did not answer a hello", "server", p.Name, "err", err)
		return
	}
	if got := resp.GetServer(); got.GetName() != p.Name {
		s.log.Error("another server answers at a peer's address", "address", p.Address, "want", p.Name, "got", got.GetName())
		return
	}
	s.dir.meet(resp.GetServer())
}

// bootstrap writes the first configuration if all first servers are met and
// none has state. If one has, the cluster exists already and its leader will
// bring this server up.
func (s *Server) bootstrap(names []string) bool {
	met, complete := s.dir.metNames(names)
	if !complete {
		return false
	}
	servers := make([]raft.Server, 0, len(met))
	for _, m := range met {
		if m.GetHasState() && m.GetId() != s.replica.ID() {
			s.hasState.Store(true)
			s.log.Warn("the cluster exists already; this server waits for its leader. If its data directory was lost, "+
				"it stays out until an operator replaces the server that it was", "id", s.replica.ID(), "met", m.GetName())
			return false
		}
		servers = append(servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.GetId()), Address: raft.ServerAddress(m.GetAddress())})
	}
	slices.SortFunc(servers, func(a, b raft.Server) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if err := s.replica.Bootstrap(servers); err != nil {
		s.log.Error("the cluster could not be bootstrapped", "err", err)
		return false
	}
	s.hasState.Store(true)
	s.log.Info("bootstrapped", "servers", len(servers))
	if string(servers[0].ID) == s.replica.ID() {
		// A new cluster has no leader whose silence would have to be waited for.
		if err := s.replica.ElectNow(); err != nil {
			s.log.Warn("the first election was left to the timeout", "err", err)
		}
	}
	return true
}
