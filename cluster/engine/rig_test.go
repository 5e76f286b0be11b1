package engine

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"trivet/cluster/replica"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
	peerv1 "trivet/proto/trivet/peer/v1"
	"trivet/proto/trivet/peer/v1/peersvc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an engine between a replica and peers that the test plays.
type rig struct {
	*Engine
	t testing.TB

	mu      sync.Mutex
	leader  string // "" none, "self", or a peer's address
	peers   map[string]*peer
	propose func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error)
	read    func(ctx context.Context) (uint64, error)
	applied uint64
	moved   chan struct{}
	asked   []*commandv1.Command // every command of every attempt
	at      []string             // where each attempt went
	asks    []string             // where each question went
}

// peer is another server. A nil function answers that it does not lead.
type peer struct {
	peersvc.PeerClient
	r       *rig
	address string
	propose func(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error)
	read    func(ctx context.Context) (uint64, error)
	touch   func(ctx context.Context, touches []*peerv1.Touch) error
	// unknown are the sessions that touch does not have.
	unknown []string
}

const bootID = "boot"

// inBubble runs f with an engine on a virtual clock.
func inBubble(t *testing.T, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, peers: make(map[string]*peer), moved: make(chan struct{})}
		r.Engine = New(Config{Replica: (*fakeReplica)(r), Peers: (*fakePeers)(r), Machine: fsm.New(fsm.Options{}), BootID: bootID})
		defer r.Close()
		f(t, r)
	})
}

// addPeer adds a server that leads once lead names it.
func (r *rig) addPeer(address string) *peer {
	p := &peer{r: r, address: address}
	r.mu.Lock()
	r.peers[address] = p
	r.mu.Unlock()
	return p
}

// lead changes the leader and tells the engine.
func (r *rig) lead(who string) {
	r.mu.Lock()
	r.leader = who
	r.mu.Unlock()
	r.LeaderChanged()
}

// apply moves the local state.
func (r *rig) apply(revision uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = revision
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *rig) attempts() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.at...)
}

func (r *rig) questions() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.asks...)
}

func (r *rig) note(where string, cmds []*commandv1.Command) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = append(r.at, where)
	r.asked = append(r.asked, cmds...)
}

// fakeReplica is the rig as the local replica.
type fakeReplica rig

func (f *fakeReplica) ID() string { return "self" }

func (f *fakeReplica) IsLeader() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader == "self"
}

func (f *fakeReplica) Leader() (id, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leader, f.leader
}

func (f *fakeReplica) Term() uint64 { return 1 }

func (f *fakeReplica) Propose(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
	(*rig)(f).note("self", cmds)
	if f.propose == nil {
		return nil, replica.ErrNotLeader
	}
	return f.propose(ctx, cmds)
}

func (f *fakeReplica) ReadRevision(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	f.asks = append(f.asks, "self")
	f.mu.Unlock()
	if f.read == nil {
		return 0, replica.ErrNotLeader
	}
	return f.read(ctx)
}

func (f *fakeReplica) WaitRevision(ctx context.Context, revision uint64) error {
	for {
		f.mu.Lock()
		have, moved := f.applied, f.moved
		f.mu.Unlock()
		if have >= revision {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fakePeers is the rig as the pool of connections.
type fakePeers rig

func (f *fakePeers) Client(address string) (peersvc.PeerClient, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[address]; p != nil {
		return p, nil
	}
	return nil, errors.New("no such server")
}

func (p *peer) Propose(ctx context.Context, req *peerv1.ProposeRequest, _ ...grpc.CallOption) (*peerv1.ProposeResponse, error) {
	p.r.note(p.address, req.GetCommands())
	if p.propose == nil {
		return nil, onWire(replica.ErrNotLeader)
	}
	res, err := p.propose(ctx, req.GetCommands())
	if err != nil {
		return nil, onWire(err)
	}
	return &peerv1.ProposeResponse{Results: res}, nil
}

func (p *peer) ReadRevision(ctx context.Context, _ *peerv1.ReadRevisionRequest, _ ...grpc.CallOption) (*peerv1.ReadRevisionResponse, error) {
	p.r.mu.Lock()
	p.r.asks = append(p.r.asks, p.address)
	p.r.mu.Unlock()
	if p.read == nil {
		return nil, onWire(replica.ErrNotLeader)
	}
	rev, err := p.read(ctx)
	return &peerv1.ReadRevisionResponse{Revision: rev}, onWire(err)
}

func (p *peer) Touch(ctx context.Context, req *peerv1.TouchRequest, _ ...grpc.CallOption) (*peerv1.TouchResponse, error) {
	if p.touch == nil {
		return nil, onWire(replica.ErrNotLeader)
	}
	return &peerv1.TouchResponse{Unknown: p.unknown}, onWire(p.touch(ctx, req.GetTouches()))
}

// hangs answers nothing until its caller gives up.
func hangs(ctx context.Context, _ []*commandv1.Command) ([]*commandv1.Result, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// accepts answers one result per command, from revision first on.
func accepts(first uint64) func(context.Context, []*commandv1.Command) ([]*commandv1.Result, error) {
	return func(_ context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
		out := make([]*commandv1.Result, len(cmds))
		for i := range out {
			out[i] = &commandv1.Result{Revision: first + uint64(i)}
		}
		return out, nil
	}
}

func put(key string) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: key}}}
}

// after says how much virtual time f takes.
func after(f func()) time.Duration {
	begin := time.Now()
	f()
	return time.Since(begin)
}
