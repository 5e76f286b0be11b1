package actors

import (
	"time"

	"trivet/internal/rt"
)

const (
	projectorCapacity = 64
	// janitorCapacity takes a wish of every awake session.
	janitorCapacity = maxAwakeSessions
)

// restartOfOne is how the projector and the janitor come back. Without either
// the leader does nothing, so they come back soon or not at all.
var restartOfOne = rt.RestartPolicy{
	Min: 50 * time.Millisecond, Max: time.Second,
	Intensity: 5, Window: time.Minute,
	OnExceed: rt.Escalate,
}

// rootMsg has no values: the root supervises and is told nothing.
type rootMsg struct{}

// root is leader@T itself. Any failure that reaches it is the end of the tree.
type root struct{ l *Leader }

// Start brings up the groups and then those who fill them.
func (r *root) Start(ctx *rt.Ctx[rootMsg]) error {
	l := r.l
	for _, g := range []struct {
		name string
		to   **rt.Group
	}{
		{"intercepts", &l.intercepts},
		{"agents", &l.agents},
		{"clients", &l.clients},
	} {
		group, err := rt.SpawnGroup(ctx, g.name, rt.GroupPolicy{})
		if err != nil {
			return err
		}
		*g.to = group
	}
	_, err := rt.Spawn(ctx, rt.Spec[projectorMsg]{
		Name: "projector", Kind: "projector", Capacity: projectorCapacity, Restart: restartOfOne,
		New: func() rt.Behavior[projectorMsg] { return &projector{l: l} },
	})
	if err != nil {
		return err
	}
	_, err = rt.Spawn(ctx, rt.Spec[janitorMsg]{
		Name: "janitor", Kind: "janitor", Capacity: janitorCapacity, Restart: restartOfOne,
		New: func() rt.Behavior[janitorMsg] { return &janitor{l: l} },
	})
	return err
}

// Handle is never called.
func (*root) Handle(*rt.Ctx[rootMsg], rootMsg) error { return nil }

// Stop has nothing to release.
func (*root) Stop(*rt.Ctx[rootMsg], rt.Reason) {}
