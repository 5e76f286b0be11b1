package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"

	"trivet/internal/errs"
	operatorv1 "trivet/proto/trivet/operator/v1"
	peerv1 "trivet/proto/trivet/peer/v1"
)

const (
	// probeTimeout bounds the question to one server in a status.
	probeTimeout = 500 * time.Millisecond
	// newLeaderTimeout bounds the wait for the next leader after a transfer.
	newLeaderTimeout = 10 * time.Second
)

// clusterView is the server as the operator service sees it.
type clusterView Server

// Self names this server.
func (v *clusterView) Self() string { return v.cfg.Name }

// Version is the build's version.
func (v *clusterView) Version() string { return v.cfg.Version }

// Term is the current term.
func (v *clusterView) Term() uint64 { return v.replica.Term() }

// NameOf turns a server id into its name.
func (v *clusterView) NameOf(id string) string { return (*Server)(v).nameOf(id) }

// Ready says whether this server leads or has lately heard of a leader.
func (v *clusterView) Ready() bool { return (*Server)(v).Ready() }

// LeaderName is empty when no leader is known.
func (v *clusterView) LeaderName() string {
	id, _ := v.replica.Leader()
	if id == "" {
		return ""
	}
	return v.dir.name(id)
}

// Servers lists the configuration and asks each server whether it answers.
func (v *clusterView) Servers(ctx context.Context) ([]*operatorv1.Server, error) {
	servers, err := v.replica.Servers()
	if err != nil {
		return nil, err
	}
	leader, _ := v.replica.Leader()
	root := v.machine.Root()
	out := make([]*operatorv1.Server, len(servers))
	var wg sync.WaitGroup
	for i, x := range servers {
		row, _ := root.Server(string(x.ID))
		out[i] = &operatorv1.Server{
			Id: string(x.ID), Name: v.dir.name(string(x.ID)), Address: string(x.Address),
			Leader: string(x.ID) == leader, Voter: x.Suffrage == raft.Voter, Version: row.GetVersion(),
		}
		if out[i].GetName() == out[i].GetId() && row.GetName() != "" {
			out[i].Name = row.GetName()
		}
		if string(x.ID) == v.replica.ID() {
			out[i].Reachable, out[i].Revision = true, root.Revision()
			continue
		}
		wg.Go(func() { out[i].Reachable = v.reachable(ctx, string(x.Address)) })
	}
	wg.Wait()
	return out, nil
}

func (v *clusterView) reachable(ctx context.Context, address string) bool {
	client, err := v.pool.Client(address)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, err = client.Hello(ctx, &peerv1.HelloRequest{Server: (*Server)(v).info()})
	return err == nil
}

// Transfer hands leadership over, asking the leader if that is another server,
// and waits until a new one is known.
func (v *clusterView) Transfer(ctx context.Context, to string) (from, leader string, err error) {
	servers, err := v.replica.Servers()
	if err != nil {
		return "", "", err
	}
	target := ""
	for _, x := range servers {
		if to != "" && (string(x.ID) == to || v.dir.name(string(x.ID)) == to) {
			target = string(x.ID)
		}
	}
	if to != "" && target == "" {
		return "", "", errs.New(codes.NotFound, "SERVER_NOT_FOUND", "server %q is not in the configuration", to).
			WithHint("`trivet operator raft list-peers` shows the servers")
	}
	old, address := v.replica.Leader()
	switch {
	case old == "":
		return "", "", errs.New(codes.Unavailable, "NO_LEADER", "there is no leader to hand leadership over").WithRetry(time.Second)
	case target == old:
		return v.dir.name(old), v.dir.name(old), nil
	case old == v.replica.ID():
		err = (*Server)(v).transferHere(target)
	default:
		client, cerr := v.pool.Client(address)
		if cerr != nil {
			return "", "", cerr
		}
		_, err = client.Transfer(ctx, &peerv1.TransferRequest{To: target})
	}
	if err != nil {
		return "", "", err
	}
	next, err := v.waitNewLeader(ctx, old)
	return v.dir.name(old), v.dir.name(next), err
}

func (v *clusterView) waitNewLeader(ctx context.Context, old string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, newLeaderTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if id, _ := v.replica.Leader(); id != "" && id != old {
			return id, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", errs.New(codes.Aborted, "TRANSFER_FAILED", "%s gave leadership away, but no other server has taken it: %w", v.dir.name(old), ctx.Err()).
				WithHint("`trivet status` shows who leads")
		}
	}
}

// transferHere hands leadership to a server by id if this one leads.
func (s *Server) transferHere(to string) error {
	if !s.replica.IsLeader() {
		return errs.New(codes.Unavailable, "NOT_LEADER", "this server is not the leader")
	}
	address := ""
	if to != "" {
		servers, err := s.replica.Servers()
		if err != nil {
			return err
		}
		for _, x := range servers {
			if string(x.ID) == to {
				address = string(x.Address)
			}
		}
	}
	if err := s.replica.TransferLeadership(to, address); err != nil {
		return errs.New(codes.Aborted, "TRANSFER_FAILED", "%w", err).WithHint("try again; the other server may be behind")
	}
	return nil
}

// Ready says whether this server is in contact with a leader and nothing
// critical is wrong with it.
func (s *Server) Ready() bool { return s.notReady() == "" }

// notReady says why not; empty: it is ready.
func (s *Server) notReady() string {
	select {
	case <-s.stopping:
		return "shutting down"
	default:
	}
	for _, c := range s.Checks() {
		if c.Level == LevelCritical {
			return c.Name + ": " + c.Message
		}
	}
	return ""
}

// hearsLeader says whether this server leads or has heard of a leader lately.
func (s *Server) hearsLeader() bool {
	if id, _ := s.replica.Leader(); id == "" {
		return false
	}
	return time.Since(s.replica.LastContact()) < unreadyAfter
}

// ID is the server's UUID.
func (s *Server) ID() string { return s.replica.ID() }

// IsLeader says whether this server leads.
func (s *Server) IsLeader() bool { return s.replica.IsLeader() }

// Elections is how many elections the death watch has started.
func (s *Server) Elections() uint64 { return s.watch.Elections() }
