package proof

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"trivet/cmd/trivet/devenv"
	"trivet/test/systest"
)

const (
	stepRounds = 6
	// stepRoundsVariable and stepSeedVariable replace stepRounds and the fresh
	// seed.
	stepRoundsVariable = "TRIVET_STEPS_ROUNDS"
	stepSeedVariable   = "TRIVET_STEPS_SEED"
	// stepLate is how far beyond the duration that was measured a kill may come.
	stepLate = 1.2
	// stepTries bounds the repetitions of an operation that was interrupted.
	stepTries = 6
)

// TestKilledAtAnyStep kills a server at a random moment of each operation that
// changes more than one thing, starts it again, and repeats the operation until
// it is done. The cluster is whole afterwards each time.
func TestKilledAtAnyStep(t *testing.T) {
	if os.Getenv("TRIVET_PROOF") != "1" {
		t.Skip("SKIP reason: a long proof, run by make proof (TRIVET_PROOF=1)")
	}
	// So low that snapshots of the log are taken all the time.
	t.Setenv("TRIVET_SERVER_SNAPSHOT_THRESHOLD", "40")
	t.Setenv("TRIVET_SERVER_SNAPSHOT_INTERVAL", "100ms")
	t.Setenv("TRIVET_SERVER_SNAPSHOT_TRAILING_LOGS", "20")
	seed := variable(t, stepSeedVariable, rand.Uint64())
	rounds := variable(t, stepRoundsVariable, stepRounds)
	t.Logf("seed %d (%s repeats it), %d rounds of each operation", seed, stepSeedVariable, rounds)
	s := &steps{c: systest.StartServers(t), rnd: rand.New(rand.NewPCG(seed, 0))}
	s.fill(t)
	s.w = startKeyWriter(s.c)
	defer s.w.stop()
	for _, op := range []stepOp{
		{"snapshot save", s.save},
		{"snapshot restore", s.restore},
		{"join", s.join},
		{"remove", s.remove},
		{"replace", s.replace},
		{"rotate the issuing CA", s.rotateCA},
		{"rotate the seal key", s.rotateSeal},
	} {
		var took time.Duration
		if !t.Run(op.name+"/undisturbed", func(t *testing.T) { took = s.round(t, op, nil) }) {
			return
		}
		for n := range rounds {
			// One part of the duration after the other, at a random place in it.
			at := time.Duration((float64(n) + s.rnd.Float64()) / float64(rounds) * stepLate * float64(took))
			k := &stepKill{at: at, who: s.rnd.IntN(3), down: time.Duration(s.rnd.IntN(400)) * time.Millisecond}
			if !t.Run(fmt.Sprintf("%s/kill %d", op.name, n+1), func(t *testing.T) { s.round(t, op, k) }) {
				return
			}
		}
	}
}

func variable(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// steps is a run.
type steps struct {
	c   *systest.Cluster
	rnd *rand.Rand
	w   *keyWriter
	// made numbers what has to have a new name.
	made int
}

// stepOp is an operation. Its function prepares and checks it, and hands what
// is to be disturbed to the function that it is given.
type stepOp struct {
	name string
	run  func(t *testing.T, disturbed func(involved *devenv.Proc, args func() []string))
}

// stepKill is when and whom: 0 the leader, 1 a follower, 2 the server that the
// operation is about, if there is one, or else the other follower.
type stepKill struct {
	at, down time.Duration
	who      int
}

// round does an operation once, and returns how long it took.
func (s *steps) round(t *testing.T, op stepOp, k *stepKill) (took time.Duration) {
	op.run(t, func(involved *devenv.Proc, args func() []string) {
		began := time.Now()
		killed := make(chan error, 1)
		switch {
		case k == nil:
			killed <- nil
		default:
			victim := s.victim(t, k.who, involved)
			began = time.Now()
			go func() { killed <- k.do(victim) }()
			defer func() { t.Logf("%s was killed %s after the beginning, for %s", victim.Name, k.at, k.down) }()
		}
		s.toItsEnd(t, args)
		took = time.Since(began)
		if err := <-killed; err != nil {
			t.Fatal(err)
		}
	})
	s.whole(t)
	return took
}

// do kills and starts again.
func (k *stepKill) do(p *devenv.Proc) error {
	<-time.After(k.at)
	if err := p.Kill(); err != nil {
		return err
	}
	<-time.After(k.down)
	return p.Start()
}

func (s *steps) victim(t *testing.T, who int, involved *devenv.Proc) *devenv.Proc {
	t.Helper()
	leader := s.c.Leader(t)
	switch {
	case who == 0:
		return s.c.Dev.Servers[leader]
	case who == 2 && involved != nil:
		return involved
	}
	return s.c.Dev.Servers[(leader+who)%3]
}

// toItsEnd repeats a command until it succeeds.
func (s *steps) toItsEnd(t *testing.T, args func() []string) {
	t.Helper()
	var r systest.Result
	for try := range stepTries {
		a := args()
		if a == nil {
			return
		}
		if r = s.c.Trivet(t, systest.OperatorContext, append(a, "--timeout", "20s")...); r.Code == 0 {
			return
		}
		t.Logf("attempt %d of %v: %s", try+1, a, r.Err)
	}
	t.Fatalf("not done after %d attempts: %s", stepTries, r.Err)
}

func (s *steps) name(prefix string) string {
	s.made++
	return fmt.Sprintf("%s-%d", prefix, s.made)
}

// save saves a snapshot into a new file, and inspects it.
func (s *steps) save(t *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	var file string
	disturbed(nil, func() []string {
		file = filepath.Join(s.c.Dir, s.name("saved"))
		return []string{"operator", "snapshot", "save", file}
	})
	if r := s.c.Trivet(t, systest.OperatorContext, "operator", "snapshot", "inspect", file); r.Code != 0 {
		t.Errorf("what was saved is damaged: %s", r.Err)
	}
}

// restore goes back to a snapshot, from a state that can be told from it.
func (s *steps) restore(t *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	before, after := s.name("before"), s.name("after")
	s.put(t, "marker", before)
	kept := s.w.acked()
	file := filepath.Join(s.c.Dir, s.name("archive"))
	s.toItsEnd(t, func() []string { return []string{"operator", "snapshot", "save", file} })
	s.put(t, "marker", after)
	epoch := s.epoch(t)
	first := true
	disturbed(nil, func() []string {
		if !first {
			// Interrupted: one state or the other, and on all the same one.
			if got := s.marker(t); got != before && got != after {
				t.Errorf("after an interrupted restore the marker is %q", got)
			}
		}
		first = false
		return []string{"operator", "snapshot", "restore", file, "--yes"}
	})
	s.w.forget(kept)
	if got := s.marker(t); got != before {
		t.Errorf("after the restore the marker is %q, want %q", got, before)
	}
	if now := s.epoch(t); now <= epoch {
		t.Errorf("the restore epoch went from %d to %d", epoch, now)
	}
}

// join takes a fourth server in, which has a certificate or a token for one. It
// is there until remove.
func (s *steps) join(t *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	name, token := s.name("joiner"), ""
	if s.made%2 == 0 {
		token = s.token(t, "server", name)
	}
	p, err := s.c.Dev.AddServer(name, token)
	if err != nil {
		t.Fatal(err)
	}
	address := s.c.Dev.Addresses[3]
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	disturbed(p, func() []string { return []string{"operator", "raft", "add-peer", address} })
	s.members(t, 4)
	s.removed(t, name, nil)
}

// remove takes a fourth server out.
func (s *steps) remove(t *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	name := s.name("leaver")
	p, err := s.c.Dev.AddServer(name, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	address := s.c.Dev.Addresses[3]
	s.toItsEnd(t, func() []string { return []string{"operator", "raft", "add-peer", address} })
	s.members(t, 4)
	s.removed(t, name, func(args func() []string) { disturbed(p, args) })
}

// removed removes the fourth server, and stops it.
func (s *steps) removed(t *testing.T, name string, disturbed func(args func() []string)) {
	t.Helper()
	args := func() []string {
		for _, p := range s.peers(t) {
			if p.GetName() == name {
				return []string{"operator", "raft", "remove-peer", p.GetId()}
			}
		}
		return nil
	}
	if disturbed == nil {
		s.toItsEnd(t, args)
	} else {
		disturbed(args)
	}
	if err := s.c.Dev.DropServer(); err != nil {
		t.Error(err)
	}
}

// replace loses a server with its disk and puts a new one in its place.
func (s *steps) replace(t *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	i := (s.c.Leader(t) + 1) % 3
	p, address := s.c.Dev.Servers[i], s.c.Dev.Addresses[i]
	old := ""
	for _, x := range s.peers(t) {
		if x.GetAddress() == address {
			old = x.GetId()
		}
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(s.c.Dev.DataDir(p.Name)); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	disturbed(p, func() []string { return []string{"operator", "raft", "add-peer", address, "--replaces", old} })
	for _, x := range s.peers(t) {
		if x.GetId() == old {
			t.Errorf("%s is still a member", old)
		}
	}
}

func (s *steps) rotateCA(_ *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	disturbed(nil, func() []string { return []string{"ca", "rotate", "--dir", s.c.Dir} })
}

func (s *steps) rotateSeal(_ *testing.T, disturbed func(*devenv.Proc, func() []string)) {
	disturbed(nil, func() []string { return []string{"ca", "rotate", "--seal-key"} })
}
