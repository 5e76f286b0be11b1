package deathwatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a watch on a virtual clock whose servers the test plays.
type rig struct {
	*Watch
	ctx    context.Context // ends with the bubble
	mu     sync.Mutex
	leader string
	term   uint64
	vote   uint64
	alive  map[string]bool
	conns  map[string][]net.Conn
	dials  map[string]int
	elects []time.Time
	fails  error
	// blind are the voters that have not seen the leader's end.
	blind map[string]bool
	// last is where the logs end, by voter; told counts what each was told.
	last map[string]uint64
	told map[string]int
}

var voters = []Server{{"a", "addr-a"}, {"b", "addr-b"}, {"c", "addr-c"}}

// inBubble runs f with the watch of one of three voters; "a" leads.
func inBubble(t *testing.T, self string, f func(t *testing.T, r *rig)) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{leader: "a", alive: make(map[string]bool), conns: make(map[string][]net.Conn), dials: make(map[string]int)}
		r.blind, r.last, r.told = make(map[string]bool), make(map[string]uint64), make(map[string]int)
		for _, v := range voters {
			r.alive[v.Address] = true
		}
		r.Watch = New(Config{Self: self, Raft: r, Dial: r.dial, Tell: r.tell, Logger: slog.New(slog.DiscardHandler)})
		r.refused = func(_ context.Context, address string) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			return !r.alive[address]
		}
		ctx, cancel := context.WithCancel(t.Context())
		r.ctx = ctx
		r.Reconcile(ctx, voters)
		synctest.Wait()
		f(t, r)
		cancel()
		r.Wait()
	})
}

func (r *rig) dial(_ context.Context, address string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dials[address]++
	if !r.alive[address] {
		return nil, errors.New("connection refused")
	}
	here, there := net.Pipe()
	r.conns[address] = append(r.conns[address], there)
	return here, nil
}

func (r *rig) Leader() (id, address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.leader, ""
}

func (r *rig) LastEntry() (term, index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 1, r.last[r.cfg.Self]
}

func (r *rig) tell(_ context.Context, to Server, e Evidence) (Evidence, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told[to.ID]++
	if !r.alive[to.Address] {
		return Evidence{}, errors.New("connection refused")
	}
	return Evidence{From: to.ID, Leader: e.Leader, Term: e.Term, Seen: !r.blind[to.ID], LastTerm: 1, LastIndex: r.last[to.ID]}, nil
}

func (r *rig) Term() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.term
}

func (r *rig) VoteTerm() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.vote
}

func (r *rig) ElectNow() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.elects = append(r.elects, time.Now())
	return r.fails
}

func (r *rig) lead(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leader = id
}

// cut ends the connections to a server.
func (r *rig) cut(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns[address] {
		c.Close()
	}
	r.conns[address] = nil
}

// kill ends its process.
func (r *rig) kill(address string) {
	r.mu.Lock()
	r.alive[address] = false
	r.mu.Unlock()
	r.cut(address)
}

func (r *rig) revive(address string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive[address] = true
}

func (r *rig) elected() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.elects)
}

// TestSurvivorsElectInTheOrderOfTheirRank: the first at once, the others one
// delay after another, so that they do not split the votes.
func TestSurvivorsElectInTheOrderOfTheirRank(t *testing.T) {
	for self, wait := range map[string]time.Duration{"b": 0, "c": rankDelay} {
		t.Run(self, func(t *testing.T) {
			inBubble(t, self, func(t *testing.T, r *rig) {
				begin := time.Now()
				r.kill("addr-a")
				time.Sleep(rankDelay)
				synctest.Wait()
				if len(r.elects) != 1 || r.elects[0].Sub(begin) != wait {
					t.Fatalf("elections at %v after %v, want one %s later", r.elects, begin, wait)
				}
				// Nobody comes: the dead process stays dead, once is enough.
				time.Sleep(time.Minute)
				if n := r.elected(); n != 1 || r.Elections() != 1 {
					t.Errorf("%d elections, %d counted, want one", n, r.Elections())
				}
			})
		})
	}
}

func TestNextInRankStandsBackForANewLeader(t *testing.T) {
	inBubble(t, "c", func(t *testing.T, r *rig) {
		r.kill("addr-a")
		time.Sleep(rankDelay / 2)
		r.lead("b")
		time.Sleep(time.Second)
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections against the new leader", n)
		}
	})
}

func TestNextInRankStandsBackForWhomItVoted(t *testing.T) {
	for name, tc := range map[string]struct {
		vote uint64
		want int
	}{
		"voted": {vote: 2}, "refused its vote": {vote: 1, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "c", func(t *testing.T, r *rig) {
				r.mu.Lock()
				r.term, r.vote = 1, 1
				r.mu.Unlock()
				r.kill("addr-a")
				time.Sleep(rankDelay / 2)
				r.mu.Lock()
				r.term, r.vote = 2, tc.vote
				r.mu.Unlock()
				time.Sleep(time.Second)
				if n := r.elected(); n != tc.want {
					t.Errorf("%d elections, want %d", n, tc.want)
				}
			})
		})
	}
}

func TestNextInRankGoesOnWhenNobodyWon(t *testing.T) {
	inBubble(t, "c", func(t *testing.T, r *rig) {
		r.kill("addr-a")
		time.Sleep(rankDelay / 2)
		r.lead("") // the first one is a candidate
		time.Sleep(time.Second)
		if n := r.elected(); n != 1 {
			t.Errorf("%d elections, want 1", n)
		}
	})
}

// TestLeaderThatLivesIsLeftAlone: its connection ended for some other reason.
func TestLeaderThatLivesIsLeftAlone(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		for range 5 {
			r.cut("addr-a")
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections against a leader that lives", n)
		}
		if n := r.dials["addr-a"]; n != 6 {
			t.Errorf("it was dialled %d times, want once more after each cut", n)
		}
		// It is watched again.
		r.kill("addr-a")
		synctest.Wait()
		if n := r.elected(); n != 1 {
			t.Errorf("%d elections after it died, want 1", n)
		}
	})
}

func TestDeathOfAFollowerIsNoConcern(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.kill("addr-c")
		time.Sleep(time.Second)
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections", n)
		}
	})
}

// TestFruitlessElectionsAreLimited: two in one term, within a second, mean that
// nobody won; then the timeouts have their say. A later term is another matter.
func TestFruitlessElectionsAreLimited(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		die := func() {
			r.kill("addr-a")
			synctest.Wait()
			r.revive("addr-a")
			time.Sleep(retryMax)
			synctest.Wait()
		}
		die()
		die()
		if n := r.elected(); n != 1 {
			t.Errorf("%d elections within a second, want 1", n)
		}
		time.Sleep(electionEvery)
		die()
		if n := r.elected(); n != 2 {
			t.Errorf("%d elections after the limit passed, want 2", n)
		}
		r.mu.Lock()
		r.term++
		r.mu.Unlock()
		die()
		if n := r.elected(); n != 3 {
			t.Errorf("%d elections after a leader of the next term died, want 3", n)
		}
	})
}

func TestElectionThatDoesNotStartIsCounted(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		r.fails = errors.New("no")
		r.kill("addr-a")
		synctest.Wait()
		if r.Elections() != 1 {
			t.Errorf("%d counted, want 1", r.Elections())
		}
	})
}

func TestReconcileFollowsTheVoters(t *testing.T) {
	inBubble(t, "b", func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if r.dials["addr-b"] != 0 {
			t.Error("it watches itself")
		}
		r.alive["addr-d"] = true
		r.Reconcile(ctx, []Server{{"b", "addr-b"}, {"c", "addr-c"}, {"d", "addr-d"}})
		synctest.Wait()
		if r.dials["addr-c"] != 1 || r.dials["addr-d"] != 1 {
			t.Errorf("dials %v: c stays connected, d is new", r.dials)
		}
		r.kill("addr-a")
		time.Sleep(time.Second)
		if n := r.elected(); n != 0 {
			t.Errorf("%d elections because of one that is no voter any more", n)
		}
	})
}

func TestDialThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		w := New(Config{Self: "b", Raft: &rig{}, Logger: slog.New(slog.DiscardHandler), Dial: func(ctx context.Context, _ string) (net.Conn, error) {
			dials.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		w.Reconcile(ctx, []Server{{"a", "addr-a"}})
		time.Sleep(10 * dialTimeout)
		if n := dials.Load(); n < 5 {
			t.Errorf("%d dials in %s", n, 10*dialTimeout)
		}
		cancel()
		w.Wait()
	})
}

// TestRealSockets: a listening socket lives exactly as long as its process.
func TestRealSockets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	go func() { defer close(accepted); Accept(ln, idA, bootA) }()
	address := ln.Addr().String()
	elected := make(chan struct{}, 10)
	w := New(Config{
		Self: "b", Raft: electing(elected), Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		Tell: func(_ context.Context, to Server, e Evidence) (Evidence, error) {
			return Evidence{From: to.ID, Leader: e.Leader, Term: e.Term, Seen: to.ID == "c"}, nil
		},
	})
	if refused(ctx, address) {
		t.Fatal("an open port is said to refuse")
	}
	wctx, stop := context.WithCancel(ctx)
	watching := make(chan struct{})
	dial := w.cfg.Dial
	w.cfg.Dial = func(ctx context.Context, address string) (net.Conn, error) {
		c, err := dial(ctx, address)
		if err == nil {
			close(watching)
		}
		return c, err
	}
	w.Reconcile(wctx, []Server{{idA, address}, {"b", "self"}, {"c", "127.0.0.1:1"}})
	<-watching
	ln.Close()
	select {
	case <-elected:
	case <-ctx.Done():
		t.Fatal("no election")
	}
	<-accepted
	stop()
	w.Wait()
	if w.Elections() != 1 {
		t.Errorf("%d elections, want 1", w.Elections())
	}
}

type electing chan struct{}

func (electing) Leader() (id, address string)    { return idA, "" }
func (electing) LastEntry() (term, index uint64) { return 1, 1 }
func (electing) Term() uint64                    { return 1 }
func (electing) VoteTerm() uint64                { return 1 }
func (e electing) ElectNow() error               { e <- struct{}{}; return nil }

// TestPortThatClosesLate: a process that is killed closes its descriptors one
// by one, the connections before the listening socket in the worst case.
func TestPortThatClosesLate(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		// The first redial is taken, then the port closes.
		c, err := ln.Accept()
		if err == nil {
			err = c.Close()
		}
		done <- errors.Join(err, ln.Close())
	}()
	if !refused(t.Context(), ln.Addr().String()) {
		t.Error("the port closed, but was not seen to refuse")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAcceptEndsItsConnectionsWithTheListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); Accept(ln, idA, bootA) }()
	var conns []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// What is sent is read and means nothing.
		if _, err := fmt.Fprint(c, "hello"); err != nil {
			t.Fatal(err)
		}
		// Greeted means accepted: one that only waits for it is reset with the
		// listener.
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		if g, ok := readGreeting(c); !ok || g != (greeting{idA, bootA}) {
			t.Errorf("greeted by %v", g)
		}
		conns = append(conns, c)
	}
	conns[0].Close()
	ln.Close()
	<-done
	for _, c := range conns[1:] {
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("a connection is still open")
		} else if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Error("a connection is still open")
		}
	}
}
