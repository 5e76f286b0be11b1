package actors

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"trivet/fsm"
	commandv1 "trivet/proto/trivet/command/v1"
)

// step is one thing that happens to the cluster. The numbers are drawn ahead
// of the run and mean what the step makes of them.
type step struct {
	what    string
	a, b, c int
}

func (s step) String() string { return fmt.Sprintf("%s(%d,%d,%d)", s.what, s.a, s.b, s.c) }

var steps = []string{
	"pass", "pass", "pass", "touch", "touch", "attach", "attach", "end", "drop", "reboot",
	"arrive", "depart", "create", "remove", "review", "review", "failover", "pause",
	"fault", "unconfirmed",
}

// TestRandomHistoriesKeepTheRules runs random histories in virtual time and
// checks that no session is expired before its time, that no two commands
// about one row are on their way together (see world), and that once the
// cluster is calm everything ends up where it belongs.
func TestRandomHistoriesKeepTheRules(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		script := rapid.SliceOfN(rapid.Custom(func(r *rapid.T) step {
			return step{
				what: rapid.SampledFrom(steps).Draw(r, "what"),
				a:    rapid.IntRange(0, 5).Draw(r, "a"),
				b:    rapid.IntRange(0, 2).Draw(r, "b"),
				c:    rapid.IntRange(0, 40_000).Draw(r, "c"),
			}
		}), 15, 60).Draw(r, "script")
		var problems []string
		synctest.Test(t, func(*testing.T) {
			problems = runHistory(script)
		})
		for _, p := range problems {
			r.Error(p)
		}
	})
}

// history is a stage with a simple model of what each peer may rely on.
type history struct {
	*stage

	model    sync.Mutex // guards what follows; never held while actors are called
	problems []string

	began   time.Time            // when the leader started
	sign    map[string]time.Time // last sign of life that the leader saw
	ended   map[string]time.Time // when the peer ended its last stream
	late    map[string]bool      // arrived under this leader
	streams map[string][3][2]int // by session and server: dial, other
	faults  int                  // proposals yet to fail
	kind    fault
	asks    int // confirmations yet to fail
}

// Helper makes history a reporter; nothing is done with stacks here.
func (h *history) Helper() {}

// Errorf notes a problem.
func (h *history) Errorf(format string, args ...any) {
	h.model.Lock()
	defer h.model.Unlock()
	h.problems = append(h.problems, fmt.Sprintf(format, args...))
}

// Fatalf notes a problem too; a history goes on to its end.
func (h *history) Fatalf(format string, args ...any) { h.Errorf(format, args...) }

// runHistory plays a script and returns what went wrong.
func runHistory(script []step) []string {
	h := &history{}
	h.stage = newStage(h, fsm.Options{RingSize: 64})
	h.forget()
	h.onPropose = h.judge
	h.onConfirm = h.confirm
	for i := range 6 {
		h.arrive(step{a: i, b: i, c: 1})
	}
	for i := range 3 {
		h.apply(createIntercept(peer(3+i), "i0", 0))
	}
	h.forget()
	h.start()
	for _, s := range script {
		h.play(s)
		synctest.Wait()
	}
	h.calm()
	h.close()
	select {
	case err := <-h.escalated:
		h.Errorf("escalated: %v", err)
	default:
	}
	return h.problems
}

// forget is what a new leader knows: nothing.
func (h *history) forget() {
	h.model.Lock()
	defer h.model.Unlock()
	h.began = time.Now()
	h.sign = make(map[string]time.Time)
	h.ended = make(map[string]time.Time)
	h.late = make(map[string]bool)
	h.streams = make(map[string][3][2]int)
}

// peer is one of six ids: three agents and three clients.
func peer(i int) string {
	if i < 3 {
		return fmt.Sprintf("agent:p%d", i)
	}
	return fmt.Sprintf("c%d", i)
}

var servers = []string{"x", "y", "z"}

func (h *history) play(s step) {
	id := peer(s.a)
	switch s.what {
	case "pass":
		time.Sleep(time.Duration(s.c) * time.Millisecond)
	case "touch":
		if h.leader.Touch(id, time.Time{}) {
			h.alive(id)
		}
	case "attach":
		h.report(s.b, id, s.c%2, s.c/2%2, false)
	case "end":
		h.report(s.b, id, 0, 0, true)
	case "drop", "reboot":
		h.forgetServer(s.b)
		if s.what == "drop" {
			h.leader.DropServer(servers[s.b])
		} else {
			h.leader.SetAttachments(servers[s.b], fmt.Sprint("boot-", s.c), true, nil)
			h.leader.SetAttachments(servers[s.b], "boot", true, nil)
		}
	case "arrive":
		h.arrive(s)
	case "depart":
		h.apply(&commandv1.Command{Op: &commandv1.Command_Depart{Depart: &commandv1.Depart{SessionId: id}}})
	case "create":
		h.apply(createIntercept(peer(3+s.a%3), fmt.Sprint("i", s.b), time.Duration(s.c%3)*40*time.Second))
	case "remove":
		h.apply(&commandv1.Command{Op: &commandv1.Command_RemoveIntercept{RemoveIntercept: &commandv1.RemoveIntercept{
			SessionId: peer(3 + s.a%3), Name: fmt.Sprint("i", s.b),
		}}})
	case "review":
		h.reviewAll(peer(s.a % 3))
	case "failover":
		h.stop()
		h.set(func() { h.term++ })
		h.forget()
		h.start()
	case "pause":
		// Long enough to be noticed: a shorter one is time that has passed.
		h.leader.clock.skip(h.limits.PauseGap + time.Duration(s.c)*time.Millisecond)
	case "fault":
		h.set(func() { h.faults, h.kind = s.b+1, lost+fault(s.c%3) })
	case "unconfirmed":
		h.set(func() { h.asks = s.b + 1 })
	}
}

// arrive brings a session, or an agent that may have other ports than before.
// An arrival that changes nothing leaves no trace in the state.
func (h *history) arrive(s step) {
	id := peer(s.a)
	before, known := h.m.Root().Session(id)
	if s.a >= 3 {
		if !known {
			h.apply(arriveClient(id))
			h.newcomer(id)
		}
		return
	}
	h.apply(arriveAgent(fmt.Sprint("p", s.a), int32(s.c)))
	if s.b == 0 {
		h.apply(&commandv1.Command{Op: &commandv1.Command_SetGeneration{
			SetGeneration: &commandv1.SetGeneration{SessionId: id, Generation: older},
		}})
	}
	after, _ := h.m.Root().Session(id)
	switch {
	case !known:
		h.newcomer(id)
	case after.GetModifyRevision() != before.GetModifyRevision():
		h.alive(id)
		h.resumed(id)
	}
}

func (h *history) newcomer(id string) {
	h.alive(id)
	h.resumed(id)
	h.model.Lock()
	defer h.model.Unlock()
	h.late[id] = true
}

func (h *history) alive(id string) {
	h.model.Lock()
	defer h.model.Unlock()
	h.sign[id] = time.Now()
}

// resumed takes back that the peer ended its last stream.
func (h *history) resumed(id string) {
	h.model.Lock()
	defer h.model.Unlock()
	delete(h.ended, id)
}

// reviewAll lets an agent approve whatever it may.
func (h *history) reviewAll(agent string) {
	if !h.hasSession(agent) {
		return
	}
	for row := range h.m.Root().Intercepts {
		h.review(agent, row.Id)
	}
}

// report tells the leader and the model about one session at one server.
func (h *history) report(server int, id string, dial, other int, ended bool) {
	h.note(server, id, dial, other, ended)
	h.leader.SetAttachments(servers[server], "boot", false, []Attachment{{
		SessionID: id, DialStreams: dial, WatchStreams: other, EndedByPeer: ended,
	}})
}

// note is report for the model.
func (h *history) note(server int, id string, dial, other int, ended bool) {
	h.model.Lock()
	defer h.model.Unlock()
	held := h.streams[id]
	held[server] = [2]int{dial, other}
	h.streams[id] = held
	switch total := h.total(id); {
	case total > 0:
		delete(h.ended, id)
	case ended:
		if _, ok := h.ended[id]; !ok {
			h.ended[id] = time.Now()
		}
	}
}

func (h *history) total(id string) (n int) {
	for _, held := range h.streams[id] {
		n += held[0] + held[1]
	}
	return n
}

// reachable says whether some server holds a dial stream.
func (h *history) reachable(id string) bool {
	for _, held := range h.streams[id] {
		if held[0] > 0 {
			return true
		}
	}
	return false
}

func (h *history) forgetServer(server int) {
	h.model.Lock()
	defer h.model.Unlock()
	for id, held := range h.streams {
		held[server] = [2]int{}
		h.streams[id] = held
	}
}

// judge sees each proposal before it takes effect.
func (h *history) judge(c *commandv1.Command) fault {
	for _, item := range c.GetExpireSessions().GetItems() {
		row, ok := h.m.Root().Session(item.SessionId)
		if !ok || row.ModifyRevision != item.SeenModifyRevision {
			continue // it will be left alone
		}
		if early := time.Until(h.least(row)); early >= 0 {
			h.Errorf("%s would expire %v before its time", row.Id, early)
		}
	}
	if h.faults > 0 {
		h.faults--
		return h.kind
	}
	return none
}

// least is the last moment at which a session must not have expired.
func (h *history) least(row *commandv1.SessionRow) time.Time {
	h.model.Lock()
	defer h.model.Unlock()
	period := 24 * time.Hour
	if row.Kind == agentKind {
		period = 70 * time.Second
	}
	if row.Generation == older {
		period = 15 * time.Second
	}
	later := func(a, b time.Time) time.Time {
		if a.After(b) {
			return a
		}
		return b
	}
	sign := later(h.sign[row.Id], h.began)
	least := sign.Add(period)
	ended, ok := h.ended[row.Id]
	if !ok || row.Kind != agentKind {
		return least
	}
	if short := later(ended, sign).Add(15 * time.Second); short.Before(least) {
		least = short
	}
	if !h.late[row.Id] {
		least = later(least, h.began.Add(period))
	}
	return least
}

func (h *history) confirm() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asks > 0 {
		h.asks--
		return errUnknownOutcome
	}
	return nil
}

// calm lets the cluster come to rest and checks where everything is.
func (h *history) calm() {
	h.set(func() { h.faults, h.asks = 0, 0 })
	for range 8 {
		for i := range 6 {
			if h.leader.Touch(peer(i), time.Time{}) {
				h.alive(peer(i))
			}
		}
		h.pass(10 * time.Second)
	}
	now := time.Now().UnixNano()
	for row := range h.m.Root().Intercepts {
		away := row.OwnerState == ownerAway
		present := h.reachable(row.SessionId)
		judged := row.Disposition == dispActive || row.Disposition == dispWaiting
		if present && away || !present && !away && judged {
			h.Errorf("intercept %s is %v, owner %v, dial stream %v",
				row.Id, row.Disposition, row.OwnerState, present)
		}
		if row.LeaseUntil != 0 && row.LeaseUntil <= now {
			h.Errorf("intercept %s outlived its lease", row.Id)
		}
	}
	h.pass(3 * time.Minute)
	stats := h.leader.Stats()
	rows, clients := 0, 0
	for row := range h.m.Root().Sessions {
		if row.Kind == agentKind {
			h.Errorf("agent %s outlived its silence", row.Id)
		}
		clients++
	}
	for range h.m.Root().Intercepts {
		rows++
	}
	if stats.Agents != 0 || stats.Clients != clients || stats.Intercepts != rows || stats.AwakeSessions != 0 {
		h.Errorf("%d agents, %d clients, %d intercepts, %d awake; the state has %d clients, %d intercepts",
			stats.Agents, stats.Clients, stats.Intercepts, stats.AwakeSessions, clients, rows)
	}
}
