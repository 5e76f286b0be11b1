package systest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"
)

// listed is the shape of lists in JSON.
type listed[T any] struct {
	Items []T `json:"items"`
}

// Intercepted is an intercept as `trivet intercept list -o json` shows it.
type Intercepted struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	Client      string `json:"client"`
	Disposition string `json:"disposition"`
	OwnerState  string `json:"ownerState"`
	Message     string `json:"message"`
}

// Session is a session as `trivet session list -o json` shows it.
type Session struct {
	ID       string   `json:"id"`
	Kind     string   `json:"kind"`
	Name     string   `json:"name"`
	Attached []string `json:"attached"`
}

// Intercepts asks one server, by its place among them, for all intercepts.
func (c *Cluster) Intercepts(t testing.TB, server int) []Intercepted {
	t.Helper()
	r := c.Trivet(t, OperatorContext, "intercept", "list", "--server", c.Dev.Addresses[server], "-o", "json")
	out := JSON[listed[Intercepted]](t, r).Items
	slices.SortFunc(out, func(a, b Intercepted) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Sessions asks one server for all sessions, ordered by id.
func (c *Cluster) Sessions(t testing.TB, server int) []Session {
	t.Helper()
	r := c.Trivet(t, OperatorContext, "session", "list", "--server", c.Dev.Addresses[server], "-o", "json")
	out := JSON[listed[Session]](t, r).Items
	slices.SortFunc(out, func(a, b Session) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// SessionIDs are the ids of all sessions that a server knows.
func (c *Cluster) SessionIDs(t testing.TB, server int) []string {
	t.Helper()
	var out []string
	for _, s := range c.Sessions(t, server) {
		out = append(out, s.ID)
	}
	return out
}

const (
	// sameStateTimeout is how long servers may take to come to one revision.
	sameStateTimeout = 20 * time.Second
	// leadTimeout is how long it may take until a given server leads.
	leadTimeout = 30 * time.Second
)

// WantSameState ends the test unless all running servers come to hold the same
// state.
func (c *Cluster) WantSameState(t testing.TB) (revision uint64) {
	t.Helper()
	revision, err := c.Ops.SameState(Deadline(t, sameStateTimeout))
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// Leader is the leader's place among the servers.
func (c *Cluster) Leader(t testing.TB) int {
	t.Helper()
	leader, err := c.Ops.Leader(Deadline(t, sameStateTimeout))
	if err != nil {
		t.Fatal(err)
	}
	return leader
}

// Lead makes a server the leader, as an operator would.
func (c *Cluster) Lead(t testing.TB, server int) {
	t.Helper()
	Eventually(t, leadTimeout, "the server leads", func() error {
		leader := c.Leader(t)
		if leader == server {
			return nil
		}
		r := c.Trivet(t, OperatorContext, "operator", "raft", "transfer-leadership", "--to", c.Dev.Servers[server].Name)
		return fmt.Errorf("%s led; transfer: exit %d, %s", c.Dev.Servers[leader].Name, r.Code, r.Err)
	})
}

// Running are the places of the servers that run.
func (c *Cluster) Running() []int {
	var out []int
	for i, p := range c.Dev.Servers {
		if p.Running() {
			out = append(out, i)
		}
	}
	return out
}
