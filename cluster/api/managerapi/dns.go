package managerapi

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"trivet/cluster/engine"
	"trivet/cluster/names"
	"trivet/fsm"
	"trivet/internal/errs"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	// agentTime is how long agents may take to answer a question about a name, and
	// maxAgentsAsked how many are asked; both are those of the published manager.
	agentTime      = time.Second
	maxAgentsAsked = 2
	// maxLookups bounds the questions under way on this server. Each holds a call
	// and may hold a socket of the resolver.
	maxLookups = 512
	// firstWithCodes is the first version of clients that read why a name was not
	// found in the answer; earlier ones read it in the call's status.
	firstWithCodes = "2.22.0"
)

// Agents asks agents about names, on whatever server they wait.
type Agents interface {
	// Open registers the stream of an agent's session on this server.
	Open(session string) *names.Stream
	// Answer takes an agent's answer.
	Answer(*manager.DNSAgentResponse) bool
	// Ask returns an agent's answer, or an error if it gives none before ctx ends.
	Ask(ctx context.Context, agent string, question *manager.DNSRequest) (*manager.DNSResponse, error)
}

// WatchLookupDNS hands an older agent the questions that its pod's resolver is to
// answer. It returns nil when the session ends.
func (s *Service) WatchLookupDNS(info *manager.SessionInfo, stream grpc.ServerStreamingServer[manager.DNSRequest]) error {
	ctx := stream.Context()
	row, err := s.session(ctx, info, commandv1.SessionKind_SESSION_KIND_AGENT)
	if err != nil {
		return err
	}
	if err := s.showsItsAge(ctx, row); err != nil {
		return err
	}
	detach := s.cfg.Registry.OpenWatch(row.GetId())
	defer func() { detach(s.endedByPeer()) }()
	questions := s.cfg.Names.Open(row.GetId())
	defer questions.Close()
	root := s.cfg.Core.Root()
	cur := s.cfg.Core.WatchFrom(root)
	if err := stream.SendHeader(metadata.Pairs(engine.MetaRevision, revision(root))); err != nil {
		return err
	}
	for {
		select {
		case q := <-questions.Questions():
			if err := stream.Send(q); err != nil {
				return err
			}
		case <-cur.Wait():
			if _, ok := cur.Next().Root.Session(row.GetId()); !ok {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			return errStopping()
		}
	}
}

// showsItsAge records that an agent uses what only older ones do.
func (s *Service) showsItsAge(ctx context.Context, row *commandv1.SessionRow) error {
	if row.GetKind() != commandv1.SessionKind_SESSION_KIND_AGENT || row.GetGeneration() != commandv1.Generation_GENERATION_UNSPECIFIED {
		return nil
	}
	_, err := s.cfg.Core.Propose(ctx, row.GetIdentity(), nil, &commandv1.Command{Op: &commandv1.Command_SetGeneration{
		SetGeneration: &commandv1.SetGeneration{SessionId: row.GetId(), Generation: commandv1.Generation_GENERATION_OLDER},
	}})
	return err
}

// AgentLookupDNSResponse takes an agent's answer. One that comes too late is
// ignored.
func (s *Service) AgentLookupDNSResponse(ctx context.Context, resp *manager.DNSAgentResponse) (*emptypb.Empty, error) {
	if _, err := s.session(ctx, resp.GetSession(), commandv1.SessionKind_SESSION_KIND_AGENT); err != nil {
		return nil, err
	}
	s.cfg.Names.Answer(resp)
	return new(emptypb.Empty), nil
}

// LookupDNS answers a client's question: by the older agents that it intercepts,
// or else those of its namespace, and when there is none or none answers by this
// server's resolver.
func (s *Service) LookupDNS(ctx context.Context, req *manager.DNSRequest) (*manager.DNSResponse, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	if !names.ValidName(req.GetName()) || req.GetType() > 1<<16-1 {
		return nil, errs.New(codes.InvalidArgument, "BAD_NAME", "%q, type %d, is no question about a name", req.GetName(), req.GetType()).
			WithHint("names are fully qualified: they end with a dot")
	}
	done, err := s.lookupSlot(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	root := s.cfg.Core.Root()
	if out := s.askAgents(ctx, root, sess, req); out != nil {
		return out, nil
	}
	out, err := s.cfg.Resolver.Query(ctx, s.scope(ctx, root, sess), req.GetName(), names.Type(req.GetType()))
	if err == nil {
		return out, nil
	}
	code, failure := names.Failure(err)
	if fsm.AtLeast(sess.GetClient().GetVersion(), firstWithCodes) {
		return &manager.DNSResponse{RCode: code}, nil
	}
	return nil, failure
}

// Lookup answers with the addresses of a name; none when it is not there. Agents
// are not asked: newer clients ask those themselves.
func (s *Service) Lookup(ctx context.Context, req *manager.LookupRequest) (*manager.LookupResponse, error) {
	sess, err := s.session(ctx, req.GetSession(), commandv1.SessionKind_SESSION_KIND_CLIENT)
	if err != nil {
		return nil, err
	}
	switch name := req.GetName(); {
	case len(name) < 2 || name[len(name)-1] != '.':
		return nil, errs.New(codes.InvalidArgument, "BAD_NAME", "empty name").WithHint("names are fully qualified: they end with a dot")
	case !names.ValidName(name):
		return nil, errs.New(codes.InvalidArgument, "BAD_NAME", "%q is no name", name)
	}
	done, err := s.lookupSlot(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ips, err := s.cfg.Resolver.Addresses(ctx, s.scope(ctx, s.cfg.Core.Root(), sess), req.GetName())
	if err != nil {
		_, failure := names.Failure(err)
		return nil, failure
	}
	out := new(manager.LookupResponse)
	for _, ip := range ips {
		raw, err := ip.MarshalBinary()
		if err != nil {
			return nil, err
		}
		out.Ips = append(out.Ips, raw)
	}
	return out, nil
}

// lookupSlot takes one of the places for questions under way.
func (s *Service) lookupSlot(ctx context.Context) (done func(), err error) {
	select {
	case s.lookups <- struct{}{}:
		return func() { <-s.lookups }, nil
	default:
	}
	select {
	case s.lookups <- struct{}{}:
		return func() { <-s.lookups }, nil
	case <-time.After(agentTime):
		s.lookupsRefused.Add(1)
		return nil, errs.New(codes.Unavailable, "LOOKUPS_FULL", "%d lookups are under way on this server", maxLookups).
			WithHint("ask again, or another server; does its resolver answer?")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// LookupsRefused counts questions that found too many under way.
func (s *Service) LookupsRefused() uint64 { return s.lookupsRefused.Load() }

func (s *Service) scope(ctx context.Context, root *fsm.Root, sess *commandv1.SessionRow) names.Scope {
	return names.Scope{
		Namespace: sess.GetClient().GetNamespace(), Domain: s.network(root).Domain(),
		Workload: func(namespace, name string) (ips []netip.Addr) {
			if managed(ctx, namespace) != nil {
				return nil
			}
			row, _ := root.Workload(namespace, name)
			for _, pod := range row.GetPods() {
				if ip, err := netip.ParseAddr(pod.GetIp()); err == nil {
					ips = append(ips, ip.Unmap())
				}
			}
			return ips
		},
	}
}

// askAgents returns the best answer of the agents that come into question; nil
// when there is none, or none answers in time.
func (s *Service) askAgents(ctx context.Context, root *fsm.Root, sess *commandv1.SessionRow, req *manager.DNSRequest) *manager.DNSResponse {
	agents := agentsFor(root, sess)
	if len(agents) == 0 {
		return nil
	}
	rand.Shuffle(len(agents), func(i, j int) { agents[i], agents[j] = agents[j], agents[i] })
	agents = agents[:min(len(agents), maxAgentsAsked)]
	ctx, cancel := context.WithTimeout(ctx, agentTime)
	defer cancel()
	var (
		mu   sync.Mutex
		best *manager.DNSResponse
		wg   sync.WaitGroup
	)
	for _, agent := range agents {
		wg.Go(func() {
			resp, err := s.cfg.Names.Ask(ctx, agent, req)
			if err != nil || resp == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if best == nil || resp.GetRCode() < best.GetRCode() {
				best = resp
			}
		})
	}
	wg.Wait()
	return best
}

// agentsFor are the older agents that may answer a client: those of what it
// intercepts, or else those of its namespace.
func agentsFor(root *fsm.Root, sess *commandv1.SessionRow) []string {
	seen := make(map[string]bool)
	var out []string
	add := func(row *commandv1.SessionRow) {
		if row.GetGeneration() == commandv1.Generation_GENERATION_OLDER && !seen[row.GetId()] {
			seen[row.GetId()] = true
			out = append(out, row.GetId())
		}
	}
	for i := range root.InterceptsOf(sess.GetId()) {
		for a := range root.AgentsOf(i.GetSpec().GetNamespace(), i.GetSpec().GetAgent()) {
			add(a)
		}
	}
	if ns := sess.GetClient().GetNamespace(); len(out) == 0 && ns != "" {
		for a := range root.AgentsIn(ns) {
			add(a)
		}
	}
	return out
}
