package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trivet/actors"
	"trivet/cluster/attach"
	"trivet/cluster/replica"
	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// lead runs the leader's tree while its server leads.
type lead struct {
	s *server
	// want is the term to be led, as far as the server was told; 0: none.
	want uint64
	// news are the terms that it will be told of, in order.
	news []uint64

	tree      *actors.Leader
	rep       *replicator
	listening bool // keepalives and attachments reach the tree
	stopping  *actors.Leader
	init      bool // the first command of the cluster is on its way
}

// tell passes on that leadership of a term was established, or, for 0, that it
// has ended.
func (s *server) tell(term uint64) {
	l := &s.lead
	l.news = append(l.news, term)
	s.soon(30*time.Millisecond, func() {
		l.want = l.news[0]
		l.news = l.news[1:]
		l.move()
	})
}

// move stops a tree that is not wanted any more and, when it has stopped,
// starts the one that is.
func (l *lead) move() {
	switch {
	case l.tree != nil && l.rep.term != l.want:
		l.listening = false
		l.s.view.SetListener(nil)
		l.stopping, l.tree = l.tree, nil
		fallthrough
	case l.stopping != nil:
		if l.stopping.Stop(gone) != nil {
			l.s.soon(5*time.Millisecond, l.move)
			return
		}
		l.stopping = nil
	}
	if l.want != 0 && l.tree == nil {
		l.begin()
	}
}

// gone is a context for asking without waiting.
var gone = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// begin starts the tree, in a new cluster after its first command.
func (l *lead) begin() {
	s := l.s
	if s.machine.Root().Meta().GetClusterId() == "" {
		if !l.init {
			l.init = true
			s.gateway.own(&commandv1.Command{
				ExpectedTerm: l.want,
				Op: &commandv1.Command_InitCluster{InitCluster: &commandv1.InitCluster{
					ClusterId: "sim", DedupeKey: []byte("0123456789abcdef0123456789abcdef"),
				}},
			}, func() { l.init = false; l.move() })
		}
		return
	}
	term := l.want
	l.rep = &replicator{s: s, term: term, began: s.w.now, start: s.machine.Root().Revision()}
	tree, err := actors.StartLeader(context.Background(), s.system, actors.Config{
		Term: term, Replicator: l.rep, Limits: limits(s.w.Plant),
		OnEscalate: func(err error) { s.w.violate("%s: the leader of term %d cannot go on: %v", s.name, term, err) },
	})
	if err != nil {
		s.w.violate("%s: %v", s.name, err)
		return
	}
	s.w.note("leads", s.name, term, s.machine.Root().Revision())
	l.tree, l.listening = tree, true
	s.view.SetListener(listener{s.w, tree})
}

// abandon ends the tree with its server: nothing of it has any effect any more.
func (l *lead) abandon() {
	for _, t := range []*actors.Leader{l.tree, l.stopping} {
		if t != nil {
			_ = t.Stop(gone) // it stops; the stepper is what waits for it
		}
	}
}

// listener passes attachments to the tree.
type listener struct {
	w    *world
	tree *actors.Leader
}

func (l listener) SetAttachments(server, boot string, full bool, atts []attach.Attachment) {
	var out []actors.Attachment
	for _, a := range atts {
		if l.w.Plant == StickyOwner && a.DialStreams == 0 && !full {
			continue
		}
		out = append(out, actors.Attachment{
			SessionID: a.SessionID, DialStreams: a.DialStreams, WatchStreams: a.WatchStreams, EndedByPeer: a.EndedByPeer,
		})
	}
	l.tree.SetAttachments(server, boot, full, out)
}

func (l listener) DropServer(server string) { l.tree.DropServer(server) }

// replicator is the server as the tree of a term sees it. Its methods that wait
// are called by workers only.
type replicator struct {
	s    *server
	term uint64
	// began is when the tree started, start the revision of the state then.
	began time.Duration
	start uint64
}

var errDead = errors.New("the server is dead")

// Propose queues the commands and waits for them.
func (r *replicator) Propose(ctx context.Context, cmds ...*commandv1.Command) ([]*commandv1.Result, error) {
	s := r.s
	if !s.alive {
		return nil, errDead
	}
	for _, c := range cmds {
		c.Version = fsm.CommandVersion
		if c.GetExpectedTerm() != r.term {
			s.w.violate("%s proposed %T without its term", s.name, c.GetOp())
		}
	}
	s.w.canon.judge(r, cmds)
	p, err := s.propose(cmds)
	if err != nil {
		return nil, err
	}
	s.w.unlucky(s, 2)
	end := s.w.now + limits(NoBug).ProposeTimeout
	s.after(end-s.w.now, func() {})
	s.stepper.Park(func() bool { return isClosed(p.Done()) || ctx.Err() != nil || !s.alive || s.w.now >= end })
	if isClosed(p.Done()) {
		return p.Outcome()
	}
	return nil, fmt.Errorf("%w: %w", replica.ErrUnknownOutcome, context.DeadlineExceeded)
}

// ConfirmLeader asks the others: some time after the call a quorum must be
// there whose newest term is this one's.
func (r *replicator) ConfirmLeader(ctx context.Context) error {
	s, w := r.s, r.s.w
	for range 20 {
		if !s.alive {
			return errDead
		}
		at := w.now + w.sched.between(time.Millisecond, 50*time.Millisecond)
		s.after(at-w.now, func() {})
		s.stepper.Park(func() bool { return w.now >= at || ctx.Err() != nil || !s.alive })
		if !s.alive || ctx.Err() != nil || !s.leads || s.log.term != r.term {
			break
		}
		if s.confirmed() {
			return nil
		}
	}
	return replica.ErrNotLeader
}

// confirmed says whether a quorum that is asked now knows of no later leader.
func (s *server) confirmed() bool {
	n := 0
	for _, o := range s.w.servers {
		if o == s || o.alive && !o.paused && s.w.path(s, o) && s.w.path(o, s) && o.log.term <= s.log.term {
			n++
		}
	}
	return s.leads && n >= quorum
}

// Root is the newest state.
func (r *replicator) Root() *fsm.Root { return r.s.machine.Root() }

// Watch follows the state.
func (r *replicator) Watch(after uint64) *fsm.Cursor {
	if r.s.shadow != nil {
		return r.s.shadow.WatchFrom(r.s.shadow.Root())
	}
	return r.s.machine.Watch(after)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
