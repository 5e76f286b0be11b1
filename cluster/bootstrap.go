package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/internal/fault"
	"trivet/internal/seal"
	peerv1 "trivet/proto/trivet/peer/v1"
)

const (
	helloEvery   = 100 * time.Millisecond
	helloTimeout = 2 * time.Second
	// helloIdle is how often servers repeat their hello once all is settled: it
	// carries new boot ids and finds servers that moved.
	helloIdle = 5 * time.Second
	// joinEvery is the pause between two attempts to join; one attempt waits
	// until this server has caught up.
	joinEvery   = 500 * time.Millisecond
	joinTimeout = 5 * time.Minute
)

func (s *Server) info() *peerv1.ServerInfo {
	return &peerv1.ServerInfo{
		Id: s.replica.ID(), Name: s.cfg.Name, Address: s.cfg.Advertise, BootId: s.bootID,
		ClusterId: s.cfg.Source.Bundle().ID.Cluster, HasState: s.hasState.Load(), Time: fault.Now().UnixNano(),
		Version: s.cfg.Version, CommandVersion: fsm.CommandVersion, Schema: fsm.SchemaVersion,
		SealKeys: s.sealer.Ring().IDs(),
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
		s.helloAll(ctx)
		wait := helloEvery
		switch {
		case s.hasState.Load():
			wait = helloIdle
		case len(s.cfg.Join) > 0:
			wait = joinEvery
			s.join(ctx)
		default:
			s.bootstrap(names)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// helloAll greets the first servers, the members, and, before it is one of
// them, those that the configuration names for joining.
func (s *Server) helloAll(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	greeted := map[string]bool{s.cfg.Advertise: true}
	greet := func(p Peer) {
		if !greeted[p.Address] {
			greeted[p.Address] = true
			wg.Go(func() { s.hello(ctx, p) })
		}
	}
	for _, p := range s.cfg.Peers {
		greet(p)
	}
	for _, address := range append(s.dir.addresses(), s.cfg.Join...) {
		greet(Peer{Address: address})
	}
}

// join asks the members to take this server in until it is one.
func (s *Server) join(ctx context.Context) {
	for _, address := range s.joinAddresses() {
		client, err := s.pool.Client(address)
		if err != nil {
			return
		}
		jctx, cancel := context.WithTimeout(ctx, joinTimeout)
		_, err = client.Join(jctx, &peerv1.JoinRequest{Server: s.info()})
		cancel()
		switch {
		case err == nil:
			s.hasState.Store(true)
			s.log.Info("joined the cluster", "through", address)
			return
		case ctx.Err() != nil:
			return
		case errs.Reason(err) == "NOT_LEADER":
			continue
		}
		s.log.Warn("this server was not taken in", "by", address, "err", err)
	}
}

// joinAddresses are where the leader may be.
func (s *Server) joinAddresses() []string {
	out := slices.Clone(s.cfg.Join)
	s.dir.mu.Lock()
	defer s.dir.mu.Unlock()
	for _, info := range s.dir.met {
		if info.GetId() != s.replica.ID() && !slices.Contains(out, info.GetAddress()) {
			out = append(out, info.GetAddress())
		}
	}
	return out
}

// hello greets one server. A peer without a name is known by its address only.
func (s *Server) hello(ctx context.Context, p Peer) {
	client, err := s.pool.Client(p.Address)
	if err != nil {
		return
	}
	hctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	asked := time.Now()
	resp, err := client.Hello(hctx, &peerv1.HelloRequest{Server: s.info()})
	if err != nil {
		s.log.Debug("a server did not answer a hello", "server", p.Name, "address", p.Address, "err", err)
		return
	}
	if got := resp.GetServer(); p.Name != "" && got.GetName() != p.Name {
		s.log.Error("another server answers at a peer's address", "address", p.Address, "want", p.Name, "got", got.GetName())
		return
	}
	if t := resp.GetServer().GetTime(); t != 0 {
		s.dir.measured(resp.GetServer().GetId(), offsetOf(t, asked))
	}
	s.dir.tripped(resp.GetServer().GetId(), time.Since(asked))
	s.dir.meet(resp.GetServer())
	if len(s.cfg.Join) > 0 && !s.hasState.Load() {
		for _, x := range resp.GetConfiguration() {
			if x.GetName() != "" {
				s.dir.heard(x)
			}
		}
	}
	s.judge(resp)
}

// bootstrap writes the first configuration if all first servers are met and
// none has state. If one has, the cluster exists already and its leader will
// bring this server up.
func (s *Server) bootstrap(names []string) bool {
	met, complete := s.dir.metNames(names)
	if !complete {
		return false
	}
	if others, _ := s.otherKeys(); len(others) > 0 {
		s.log.Error("the cluster is not made: its first servers have no seal key in common", "others", others,
			"hint", "give all of them the file "+seal.FileName+" that `trivet ca init` made")
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
	s.standing.clear()
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
