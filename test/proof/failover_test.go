package proof

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"trivet/test/chaos/chaostest"
	"trivet/test/systest"
)

const (
	kills = 20
	// fresh is how many connections have to be intercepted right after a
	// failover, all of them opened at the same moment.
	fresh = 20
	// settle is how long the cluster may take to come to rest, far above what
	// it takes on an idle machine.
	settle = 60 * time.Second
)

func TestMain(m *testing.M) {
	code := systest.Main(m)
	if err := chaostest.Remove(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// TestInterceptOutlivesLeaders kills the leader again and again during a
// foreground `trivet intercept create`, with every server in turn as the leader
// and every server in turn as the one that the client is attached to. Another
// client, on another port, lives through all of it.
func TestInterceptOutlivesLeaders(t *testing.T) {
	if os.Getenv("TRIVET_PROOF") != "1" {
		t.Skip("SKIP reason: a long proof, run by make proof (TRIVET_PROOF=1)")
	}
	systest.Require(t, systest.NGINX)
	c := systest.Start(t)
	p := &proof{c: c, local: systest.StartLocal(t)}
	p.witness = c.Intercept(t, systest.Create{
		Name: "witness", Port: systest.AdminPortName, Local: p.local.Port, Context: systest.OtherClientContext,
	})
	for n := range kills {
		ok := t.Run(fmt.Sprintf("kill %d", n+1), func(t *testing.T) { p.round(t, n) })
		if !ok {
			break
		}
	}
	if renewed := p.witness.Events("renewed", 0); len(renewed) > 0 {
		t.Errorf("the witness lost its session: %+v", renewed)
	}
	if len(p.writes) < kills {
		t.Errorf("%d of %d kills were survived", len(p.writes), kills)
	}
	t.Logf("%d kills; from the kill to the first acknowledged write %s; to the first connection that the local process answered %s",
		len(p.writes), spread(p.writes), spread(p.connections))
}

// proof is a run of it.
type proof struct {
	c       *systest.Cluster
	local   *systest.Nginx
	witness *systest.Intercept

	// writes and connections are how long after each kill the first write was
	// acknowledged and the first new connection was answered.
	writes, connections []time.Duration
}

// round is one kill and what must hold after it.
func (p *proof) round(t *testing.T, n int) {
	c := p.c
	leader, attach := n/3%3, n%3
	c.Lead(t, leader)
	i := c.Intercept(t, systest.Create{Name: "main", Local: p.local.Port, Attach: attach})
	if got := i.Await(t, settle, "connected", 0).Address; got != c.Dev.Addresses[attach] {
		t.Fatalf("the client is attached to %s, want %s", got, c.Dev.Addresses[attach])
	}
	sessions := c.SessionIDs(t, leader)
	intercepts := p.agreed(t, i)

	load := systest.StartLoad(c.V4, c.V6)
	defer load.Stop()
	if err := load.Await(systest.Deadline(t, settle), fresh, systest.Local, time.Time{}); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := c.Dev.Servers[leader].Kill(); err != nil {
		t.Fatal(err)
	}
	acked, err := c.Ops.FirstWrite(systest.Deadline(t, settle), leader)
	if err != nil {
		t.Fatal(err)
	}
	if err := systest.WantAll(systest.Together(t.Context(), fresh, c.V4, c.V6), systest.Local); err != nil {
		t.Errorf("opened after the first acknowledged write: %v", err)
	}
	if err := load.Await(systest.Deadline(t, settle), fresh, systest.Local, acked); err != nil {
		t.Fatal(err)
	}
	visits := load.Stop()
	if err := systest.WantAll(systest.After(visits, acked), systest.Local); err != nil {
		t.Errorf("of those who came after the first acknowledged write: %v", err)
	}
	p.untouched(t, sessions, intercepts, i)

	c.Restart(t, leader)
	revision := c.WantSameState(t)
	p.untouched(t, sessions, intercepts, i)

	between, first := meanwhile(visits, killed, acked)
	p.writes = append(p.writes, acked.Sub(killed))
	p.connections = append(p.connections, first.Sub(killed))
	t.Logf("killed %s, client on %s: first write after %s, first connection after %s; %s; equal at revision %d",
		c.Dev.Servers[leader].Name, c.Dev.Servers[attach].Name, ms(acked.Sub(killed)), ms(first.Sub(killed)), between, revision)
	i.Interrupt(t)
}

// agreed wants every server that runs, each asked by itself, to show the same
// intercepts, all of them ACTIVE with their owners present, and these two only.
func (p *proof) agreed(t *testing.T, i *systest.Intercept) []systest.Intercepted {
	t.Helper()
	want := []string{i.ID, p.witness.ID}
	slices.Sort(want)
	var first []systest.Intercepted
	for _, s := range p.c.Running() {
		name := p.c.Dev.Servers[s].Name
		got := p.c.Intercepts(t, s)
		var ids []string
		for _, x := range got {
			ids = append(ids, x.ID)
			if x.Disposition != "ACTIVE" || x.OwnerState != "PRESENT" {
				t.Errorf("%s shows %s %s with its owner %s", name, x.ID, x.Disposition, x.OwnerState)
			}
		}
		if diff := cmp.Diff(want, ids); diff != "" {
			t.Errorf("%s shows other intercepts (-want +got):\n%s", name, diff)
		}
		if first == nil {
			first = got
		}
		if diff := cmp.Diff(first, got); diff != "" {
			t.Errorf("%s shows something else than the first server (-first +this):\n%s", name, diff)
		}
	}
	return first
}

// untouched wants sessions and intercepts as they were, on every server that
// runs.
func (p *proof) untouched(t *testing.T, sessions []string, intercepts []systest.Intercepted, i *systest.Intercept) {
	t.Helper()
	if diff := cmp.Diff(intercepts, p.agreed(t, i)); diff != "" {
		t.Errorf("the intercepts before and after differ (-before +after):\n%s", diff)
	}
	for _, s := range p.c.Running() {
		if diff := cmp.Diff(sessions, p.c.SessionIDs(t, s)); diff != "" {
			t.Errorf("%s: the sessions before and after differ (-before +after):\n%s", p.c.Dev.Servers[s].Name, diff)
		}
	}
	if v := p.c.Admin.Visit(t.Context()); v.Err != nil || v.By != systest.Local {
		t.Errorf("a visitor of the witness's port: %v", v)
	}
}

// meanwhile says what became of those who were there at the kill or came before
// the first acknowledged write, and when the first of all who came after the
// kill was answered by the local process.
func meanwhile(visits []systest.Visit, killed, acked time.Time) (text string, first time.Time) {
	open, came, lost, refused := 0, 0, 0, 0
	for _, v := range visits {
		bad := v.Err != nil || v.By != systest.Local
		switch {
		case v.Start.Before(killed) && v.End.After(killed):
			open++
			if bad {
				lost++
			}
		case v.Start.After(killed) && v.Start.Before(acked):
			came++
			if bad {
				refused++
			}
		}
		if v.Start.After(killed) && !bad && (first.IsZero() || v.End.Before(first)) {
			first = v.End
		}
	}
	return fmt.Sprintf("%d of %d connections open at the kill and %d of %d that came before the write were lost, the longest answer took %s",
		lost, open, refused, came, ms(systest.Longest(visits))), first
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	s := slices.Sorted(slices.Values(all))
	return fmt.Sprintf("min %s, median %s, max %s", ms(s[0]), ms(s[len(s)/2]), ms(s[len(s)-1]))
}
