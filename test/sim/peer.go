package sim

import (
	"fmt"
	"time"

	"trivet/fsm"
	"trivet/proto/telepresence/manager"
	commandv1 "trivet/proto/trivet/command/v1"
)

const (
	filterHeader = "x-who"
	namespace    = "default"
)

// workloads have agents and are intercepted.
var workloads = []string{"web", "db"}

// peer is an agent or a client.
type peer struct {
	w              *world
	name, identity string
	agent, older   bool
	workload       string // of an agent
	port           int32

	// alive: it sends keepalives and keeps streams. asleep: a client without
	// streams that otherwise lives.
	alive, asleep bool
	settled       bool
	// life counts what it has been; what is for an earlier life is ignored.
	life int

	session  string
	since    uint64 // revision of the arrival
	arriving bool
	// at holds its streams, in the life atBoot; nil: nobody.
	at     *server
	atBoot int
	// seq orders what it tells servers about its streams.
	seq uint64
	// busy: an intercept is being made or removed. reviewed are the rows, by
	// revision, that it has judged.
	busy     bool
	reviewed map[string]uint64
}

// populate makes all who use the manager.
func (w *world) populate() {
	for i := range 6 {
		name := fmt.Sprintf("p%d", i)
		w.peers = append(w.peers, &peer{
			w: w, name: name, identity: "spiffe://sim/agent/" + name, agent: true, older: i%2 == 1,
			workload: workloads[i/4], port: 9000, alive: true,
		})
	}
	for i := range 4 {
		name := fmt.Sprintf("c%d", i)
		w.peers = append(w.peers, &peer{w: w, name: name, identity: "spiffe://sim/client/" + name, alive: true})
	}
	for _, p := range w.peers {
		p.settled = w.Plant == DeafLeader
		w.at(w.life.between(0, 2*time.Second), p.act)
		w.at(w.life.between(0, 2*time.Second), p.remain)
	}
	for i := range 3 {
		c := &configWriter{w: w, name: fmt.Sprintf("w%d", i), next: 1}
		w.writers = append(w.writers, c)
		w.at(w.life.between(0, time.Second), c.act)
	}
	for i := range 4 {
		x := &watcher{w: w, name: fmt.Sprintf("watch%d", i)}
		w.watches = append(w.watches, x)
		w.at(w.life.between(0, time.Second), x.act)
	}
}

// act is the pulse of a peer.
func (p *peer) act() {
	w := p.w
	w.at(w.life.between(100*time.Millisecond, p.pace()), p.act)
	switch {
	case p.settled && !p.agent && w.restless() && w.life.oneIn(10):
		p.turn()
	case !p.settled && w.life.oneIn(14):
		p.fate()
	}
	if !p.alive {
		return
	}
	if p.session == "" {
		p.arrive()
		return
	}
	p.keepStreams()
	if p.at == nil || p.at.paused {
		return
	}
	root := p.at.machine.Root()
	if _, ok := root.Session(p.session); !ok && root.Revision() >= p.since {
		p.lost()
		return
	}
	if p.agent {
		p.review(root)
	} else if (!p.settled || w.restless()) && !p.busy && !p.asleep && w.life.oneIn(3) {
		p.intercept()
	}
}

// fate lets something happen to the peer that it has to live with.
func (p *peer) fate() {
	w := p.w
	switch {
	case !p.alive:
		if w.life.oneIn(3) {
			p.life++
			p.alive, p.asleep, p.arriving, p.busy = true, false, false, false
			if p.agent {
				p.session = "" // its successor has the same pod
			}
		}
	case w.life.oneIn(4):
		w.note("dies", p.name, 0, 0)
		p.silence()
	case w.life.oneIn(4) && p.session != "":
		w.note("departs", p.name, 0, 0)
		p.release(true)
		w.write(p.at, p.command(&commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: p.session}}}),
			func(*commandv1.Result, error) {})
		p.session = ""
	case p.agent && w.life.oneIn(3):
		w.note("ends streams", p.name, 0, 0)
		p.release(true)
		p.arriving = p.arriving && p.session == ""
	case p.agent && w.life.oneIn(2):
		w.note("restarts", p.name, 0, 0)
		p.port++
		p.release(false)
		p.session = ""
	case !p.agent:
		p.turn()
	default:
		p.release(false)
	}
}

// turn lets a client fall asleep or wake up.
func (p *peer) turn() {
	if !p.alive {
		return
	}
	p.asleep = !p.asleep
	p.w.note("sleeps or wakes", p.name, 0, 0)
	if p.asleep {
		p.release(p.w.life.oneIn(2))
	}
}

// restless says that clients still do things, although nothing else disturbs.
func (w *world) restless() bool { return w.now < w.Chaos+restTime/3 }

// settle ends what happens by fate.
func (p *peer) settle() { p.settled = true }

// silence lets the peer die without a word.
func (p *peer) silence() {
	p.life++
	p.release(false)
	p.alive = false
}

// lost is how a peer takes it that its session is not there any more.
func (p *peer) lost() {
	p.w.note("session lost", p.session, 0, 0)
	p.release(false)
	p.session = ""
}

func (p *peer) command(cmd *commandv1.Command) *commandv1.Command {
	cmd.Identity = p.identity
	return cmd
}

// arrive makes a session.
func (p *peer) arrive() {
	if p.arriving {
		return
	}
	p.arriving = true
	life := p.life
	s := p.w.servers[p.w.life.n(servers)]
	p.w.write(s, p.command(p.arrival()), func(res *commandv1.Result, err error) {
		if p.life != life {
			return
		}
		p.arriving = false
		if err != nil || res.GetCode() != commandv1.Code_CODE_OK {
			if err == nil {
				p.w.note("not welcome", p.name+" "+res.GetReason(), 0, 0)
			}
			return
		}
		p.session, p.since = res.GetSession().GetId(), res.GetRevision()
		p.reviewed = make(map[string]uint64)
		p.keepStreams()
		if p.older {
			p.w.write(p.at, p.command(&commandv1.Command{Op: &commandv1.Command_SetGeneration{SetGeneration: &commandv1.SetGeneration{
				SessionId: p.session, Generation: commandv1.Generation_GENERATION_OLDER,
			}}}), func(*commandv1.Result, error) {})
		}
	})
}

func (p *peer) arrival() *commandv1.Command {
	if !p.agent {
		return &commandv1.Command{Op: &commandv1.Command_ArriveClient{ArriveClient: &commandv1.ArriveClient{
			Info: &manager.ClientInfo{Name: p.name, InstallId: p.name, Product: "telepresence", Version: "v2.20.0"},
		}}}
	}
	return &commandv1.Command{Op: &commandv1.Command_ArriveAgent{ArriveAgent: &commandv1.ArriveAgent{
		Info: &manager.AgentInfo{
			Name: p.workload, Namespace: namespace, Product: "telepresence", Version: "v2.20.0",
			PodName: p.name, PodUid: p.name, PodIp: "10.0.0.1", ApiPort: p.port,
			Mechanisms: []*manager.AgentInfo_Mechanism{{Name: "tcp", Product: "telepresence", Version: "v2.20.0"}},
		},
	}}}
}

// keepStreams sees to it that some server holds the peer's streams.
func (p *peer) keepStreams() {
	if p.at != nil && p.at.lives(p.atBoot) || p.asleep || !p.alive {
		return
	}
	s := p.w.servers[p.w.life.n(servers)]
	if p.w.Plant == DeafLeader {
		s = p.w.someLeader(s)
	}
	if !s.alive || s.paused {
		return
	}
	p.at, p.atBoot = s, s.boot
	p.tell(s, 1, 1, false)
}

// release ends the streams; byPeer says that the peer itself does so.
func (p *peer) release(byPeer bool) {
	if p.at == nil || p.session == "" {
		p.at = nil
		return
	}
	if p.at.lives(p.atBoot) {
		if byPeer {
			p.w.canon.truth(p.session).ended = p.w.now
		}
		p.tell(p.at, 0, 0, byPeer)
	}
	p.at = nil
}

// tell lets a server know about the peer's streams there. What was overtaken is
// not news.
func (p *peer) tell(s *server, dial, watch int, byPeer bool) {
	p.seq++
	seq, session := p.seq, p.session
	s.hear(2*time.Millisecond, func() {
		if h := s.held.at(session); h.seq < seq {
			h.seq = seq
			s.hold(session, dial, watch, byPeer)
		}
	})
}

// every is how long it takes to the next keepalive: what such peers do, or, in
// unquiet times, now and then so long that it is about too late.
func (p *peer) every() time.Duration {
	usual, limit := time.Minute, 70*time.Second
	switch {
	case !p.agent:
		usual, limit = 40*time.Second, 4*time.Minute
	case p.older:
		usual, limit = 5*time.Second, 15*time.Second
	}
	if !p.settled && p.w.life.oneIn(4) {
		return p.w.life.between(usual/2, limit+limit/20)
	}
	return usual
}

// pace is how long a peer may think before it does something.
func (p *peer) pace() time.Duration {
	if p.settled {
		return 2 * time.Second
	}
	return 700 * time.Millisecond
}

// remain sends keepalives.
func (p *peer) remain() {
	w := p.w
	w.at(p.every(), p.remain)
	if !p.alive || p.session == "" {
		return
	}
	s := w.reachable(p.at)
	if !s.alive {
		return
	}
	sent, session, life := w.now, p.session, p.life
	s.hear(5*time.Millisecond, func() {
		s.gateway.touch(session, func(known bool) {
			w.at(w.delay(5*time.Millisecond), func() {
				if p.life != life || p.session != session {
					return
				}
				w.counts.Touches++
				if known {
					t := w.canon.truth(session)
					t.sign = max(t.sign, sent)
				}
			})
		})
	})
}

// review lets an agent take up the intercepts that wait for it.
func (p *peer) review(root *fsm.Root) {
	for row := range root.InterceptsFor(namespace, p.workload) {
		d, shown := fsm.AgentView(row)
		if !shown || d != manager.InterceptDispositionType_WAITING || p.reviewed[row.GetId()] == row.GetModifyRevision() {
			continue
		}
		id, session, revision := row.GetId(), p.session, row.GetModifyRevision()
		p.reviewed[id] = revision
		p.w.write(p.at, p.command(&commandv1.Command{Op: &commandv1.Command_ReviewIntercept{ReviewIntercept: &commandv1.ReviewIntercept{
			Review: &manager.ReviewInterceptRequest{
				Session: &manager.SessionInfo{SessionId: session}, Id: id,
				Disposition: manager.InterceptDispositionType_ACTIVE, PodIp: "10.0.0.1",
			},
		}}}), func(_ *commandv1.Result, err error) {
			if err != nil && p.session == session {
				delete(p.reviewed, id)
			}
		})
	}
}

// intercept makes an intercept or removes one.
func (p *peer) intercept() {
	w := p.w
	name := fmt.Sprintf("i%d", w.life.n(2))
	cmd := &commandv1.Command{Op: &commandv1.Command_RemoveIntercept{RemoveIntercept: &commandv1.RemoveIntercept{
		SessionId: p.session, Name: name,
	}}}
	if !w.life.oneIn(4) {
		spec := &manager.InterceptSpec{
			Name: name, Client: p.name, Agent: workloads[w.life.n(len(workloads))], Namespace: namespace,
			Mechanism: "tcp", TargetHost: "127.0.0.1", TargetPort: 8080, ContainerPort: 8080,
		}
		if !w.life.oneIn(4) {
			spec.HeaderFilters = map[string]string{filterHeader: fmt.Sprint("v", w.life.n(4))}
		}
		create := &commandv1.CreateIntercept{SessionId: p.session, Spec: spec, Force: w.life.oneIn(4)}
		if w.life.oneIn(3) {
			create.Lease = int64(w.life.between(time.Second, 20*time.Second))
		}
		cmd = &commandv1.Command{Op: &commandv1.Command_CreateIntercept{CreateIntercept: create}}
	}
	life := p.life
	p.busy = true
	w.write(p.at, p.command(cmd), func(*commandv1.Result, error) {
		if p.life == life {
			p.busy = false
		}
	})
}
