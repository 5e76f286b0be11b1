package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"trivet/actors"
	"trivet/cluster/attach"
	"trivet/cluster/engine"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	stopActors = 10 * time.Second
	// leadAgain is the pause before a server that could not hand leadership over
	// starts its actors again.
	leadAgain   = time.Second
	writeOwnRow = 10 * time.Second
	// registerEvery is how often a server looks whether its row is there, and a
	// leader whether there are rows of servers that left.
	registerEvery = time.Second
	configEvery   = 500 * time.Millisecond
	configEarly   = 20 * time.Millisecond
	dedupeKeyLen  = 32
)

// replicator is the replica as the actors see it.
type replicator struct{ s *Server }

func (r replicator) Propose(ctx context.Context, cmds ...*commandv1.Command) ([]*commandv1.Result, error) {
	version := r.s.engine.Version()
	for _, c := range cmds {
		c.Version = version
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
	var term uint64
	var again <-chan time.Time
	start := func() {
		again = nil
		var err error
		if leader, err = s.startLeader(ctx, term); err != nil {
			s.log.Error("the leader's actors did not start", "term", term, "err", err)
			again = s.handOver()
		}
	}
	for {
		select {
		case l, ok := <-s.replica.Leadership():
			if !ok {
				return
			}
			stop()
			if term, again = l.Term, nil; l.Established {
				s.log.Info("leading", "term", term)
				start()
			} else {
				s.log.Info("no longer the leader", "term", term)
			}
		case e := <-s.escalations:
			if leader != nil && e.term == term {
				s.log.Error("the leader's actors cannot go on", "term", term, "err", e.err)
				stop()
				again = s.handOver()
			}
		case <-s.restored:
			// What the actors know is of another past. Starting anew gives every
			// session its full time, as after a failover.
			if leader != nil {
				stop()
				start()
			}
		case <-again:
			again = nil
			if s.replica.LeaderTerm() == term {
				start()
			}
		}
	}
}

// startLeader starts the actors of a term, in a new cluster after its first
// command.
func (s *Server) startLeader(ctx context.Context, term uint64) (*actors.Leader, error) {
	if err := s.initialise(ctx, term); err != nil {
		return nil, err
	}
	leader, err := actors.StartLeader(ctx, s.actors, actors.Config{
		Term: term, Replicator: replicator{s}, Logger: s.log.With("component", "leader", "term", term),
		Limits: s.cfg.Limits, OnEscalate: func(err error) { s.escalate(term, err) },
	})
	if err != nil {
		return nil, err
	}
	s.view.SetListener(listener{leader})
	s.engine.SetToucher(leader)
	return leader, nil
}

// escalation says that the actors of a term cannot go on.
type escalation struct {
	term uint64
	err  error
}

// escalate tells lead. It never blocks: one that is waiting already says the
// same.
func (s *Server) escalate(term uint64, err error) {
	select {
	case s.escalations <- escalation{term, err}:
	default:
	}
}

// handOver hands leadership over, because another server may be better off. If
// this one still leads when the returned channel delivers, nobody was, and it
// has to try again itself.
func (s *Server) handOver() <-chan time.Time {
	if len(s.dir.Others()) > 0 {
		if err := s.replica.TransferLeadership("", ""); err != nil {
			s.log.Error("leadership could not be handed over", "err", err)
		}
	}
	return time.After(leadAgain)
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
		return fmt.Errorf("make the cluster's dedupe key: %w", err)
	}
	id := s.cfg.Source.Bundle().ID.Cluster
	res, err := s.replica.Propose(ctx, []*commandv1.Command{{
		Version: fsm.CommandVersion, ExpectedTerm: term,
		Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{ClusterId: id, DedupeKey: key}},
	}})
	if err != nil {
		return fmt.Errorf("initialise the cluster: %w", err)
	}
	if r := res[0]; r.GetCode() != commandv1.Code_CODE_OK {
		return fmt.Errorf("initialise the cluster: %s: %s", r.GetReason(), r.GetMessage())
	}
	s.log.Info("initialised the cluster", "id", id, "revision", res[0].GetRevision())
	return nil
}

// register writes this server's row, so that results kept for its earlier
// incarnations are dropped, and again when a restored state does not have it.
func (s *Server) register(ctx context.Context) {
	defer s.wg.Done()
	tick := time.NewTicker(registerEvery)
	defer tick.Stop()
	for {
		if row, _ := s.machine.Root().Server(s.replica.ID()); row.GetBootId() != s.bootID {
			s.writeOwnRow(ctx)
		}
		s.sweepServers(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// writeOwnRow returns once the row is written or ctx has ended.
func (s *Server) writeOwnRow(ctx context.Context) {
	for ctx.Err() == nil {
		wctx, cancel := context.WithTimeout(ctx, writeOwnRow)
		err := s.putOwnRow(wctx)
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

// putOwnRow replaces the row that this server has. Compared with what it was, so
// that an earlier process's attempt that comes late does not undo it.
func (s *Server) putOwnRow(ctx context.Context) error {
	root, err := s.engine.Read(ctx, engine.Linearizable, 0)
	if err != nil {
		return err
	}
	row, _ := root.Server(s.replica.ID())
	seen := row.GetModifyRevision()
	_, err = s.engine.Propose(ctx, s.cfg.Source.Bundle().ID.String(), nil, &commandv1.Command{Op: &commandv1.Command_PutServer{
		PutServer: &commandv1.PutServer{IfModifyRevision: &seen, Server: &commandv1.ServerRow{
			Id: s.replica.ID(), Name: s.cfg.Name, Address: s.cfg.Advertise, BootId: s.bootID,
			Version: s.cfg.Version, CommandVersion: fsm.CommandVersion, StartedAt: s.started.UnixNano(),
		}},
	}})
	return err
}

// reconcile follows the Raft configuration: who is watched, who is followed.
func (s *Server) reconcile(ctx context.Context) {
	defer s.wg.Done()
	for {
		servers, err := s.replica.Servers()
		if err == nil {
			s.dir.setServers(servers)
			s.applyConfiguration(ctx, servers)
			s.notice()
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
