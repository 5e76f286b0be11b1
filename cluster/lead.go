package cluster

import (
	"context"
	"crypto/rand"
	"time"

	"trivet/actors"
	"trivet/cluster/attach"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	stopActors   = 10 * time.Second
	writeOwnRow  = 10 * time.Second
	configEvery  = 500 * time.Millisecond
	configEarly  = 20 * time.Millisecond
	dedupeKeyLen = 32
)

// replicator is the replica as the actors see it.
type replicator struct{ s *Server }

func (r replicator) Propose(ctx context.Context, cmds ...*commandv1.Command) ([]*commandv1.Result, error) {
	for _, c := range cmds {
		c.Version = fsm.CommandVersion
	}
	return r.s.replica.Propose(ctx, cmds)
}
func (r replicator) Root() *fsm.Root                { return r.s.machine.Root() }
func (r replicator) Watch(after uint64) *fsm.Cursor { return r.s.machine.Watch(after) }
func (r replicator) ConfirmLeader(ctx context.Context) error {
	_, err := r.s.replica.ReadRevision(ctx)
	return err
}

// lead runs the leader's actors while this server leads.
func (s *Server) lead(ctx context.Context) {
	defer s.wg.Done()
	var leader *actors.Leader
	stop := func() {
		if leader == nil {
			return
		}
		s.engine.SetToucher(nil)
		s.view.SetListener(nil)
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopActors)
		defer cancel()
		if err := leader.Stop(sctx); err != nil {
			s.log.Error("the leader's actors did not stop", "err", err)
		}
		leader = nil
	}
	defer stop()
	for l := range s.replica.Leadership() {
		stop()
		if !l.Established {
			s.log.Info("no longer the leader", "term", l.Term)
			continue
		}
		s.log.Info("leading", "term", l.Term)
		if s.initialise(ctx, l.Term) != nil {
			continue
		}
		var err error
		leader, err = actors.StartLeader(ctx, s.actors, actors.Config{
			Term: l.Term, Replicator: replicator{s}, Logger: s.log.With("component", "leader", "term", l.Term),
			Limits: s.cfg.Limits, OnEscalate: s.escalate,
		})
		if err != nil {
			s.escalate(err)
			continue
		}
		s.view.SetListener(listener{leader})
		s.engine.SetToucher(leader)
	}
}

// listener passes attachments to the leader's actors.
type listener struct{ *actors.Leader }

func (l listener) SetAttachments(server, boot string, full bool, atts []attach.Attachment) {
	out := make([]actors.Attachment, len(atts))
	for i, a := range atts {
		out[i] = actors.Attachment{SessionID: a.SessionID, DialStreams: a.DialStreams, WatchStreams: a.WatchStreams, EndedByPeer: a.EndedByPeer}
	}
	l.Leader.SetAttachments(server, boot, full, out)
}

// initialise writes the first command of a new cluster.
func (s *Server) initialise(ctx context.Context, term uint64) error {
	if s.machine.Root().Meta().GetClusterId() != "" {
		return nil
	}
	key := make([]byte, dedupeKeyLen)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	res, err := s.replica.Propose(ctx, []*commandv1.Command{{
		Version: fsm.CommandVersion, ExpectedTerm: term,
		Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
			ClusterId: s.cfg.Source.Bundle().ID.Cluster, DedupeKey: key,
		}},
	}})
	if err != nil {
		s.log.Error("the cluster could not be initialised", "err", err)
		return err
	}
	s.log.Info("initialised the cluster", "id", s.cfg.Source.Bundle().ID.Cluster, "revision", res[0].GetRevision())
	return nil
}

// escalate hands leadership over: something here keeps the actors from doing
// their work, and another server may be better off.
func (s *Server) escalate(err error) {
	s.log.Error("handing leadership over", "err", err)
	if err := s.replica.TransferLeadership("", ""); err != nil {
		s.log.Error("leadership could not be handed over", "err", err)
	}
}

// register writes this server's row, so that results kept for its earlier
// incarnations are dropped.
func (s *Server) register(ctx context.Context) {
	defer s.wg.Done()
	for ctx.Err() == nil {
		wctx, cancel := context.WithTimeout(ctx, writeOwnRow)
		_, err := s.engine.Propose(wctx, s.cfg.Source.Bundle().ID.String(), nil, &commandv1.Command{Op: &commandv1.Command_PutServer{
			PutServer: &commandv1.PutServer{Server: &commandv1.ServerRow{
				Id: s.replica.ID(), Name: s.cfg.Name, Address: s.cfg.Advertise, BootId: s.bootID,
				Version: s.cfg.Version, CommandVersion: fsm.CommandVersion, StartedAt: s.started.UnixNano(),
			}},
		}})
		cancel()
		if err == nil {
			return
		}
		s.log.Debug("this server's row is not written yet", "err", err)
		select {
		case <-time.After(helloEvery):
		case <-ctx.Done():
		}
	}
}

// reconcile follows the Raft configuration: who is watched, who is followed.
func (s *Server) reconcile(ctx context.Context) {
	defer s.wg.Done()
	for {
		servers, err := s.replica.Servers()
		if err == nil {
			s.dir.setServers(servers)
			s.applyConfiguration(ctx, servers)
		}
		next := time.After(configEvery)
		if len(servers) == 0 {
			// A server that just joined learns of the others any moment.
			next = time.After(configEarly)
		}
		select {
		case <-next:
		case <-s.dir.changed:
		case <-ctx.Done():
			return
		}
	}
}

var _ actors.Replicator = replicator{}
