package rt

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

const groupKind = "group"

// Limits of a GroupPolicy that names none.
const (
	DefaultQuarantineMin   = 20
	DefaultQuarantineShare = 0.1
	DefaultGroupWindow     = time.Minute
)

// A GroupPolicy says how many quarantined children a group bears. A field that
// is zero has its default. The limit is exceeded when, within Window, at least
// QuarantineMin children and at least that share of all were quarantined.
type GroupPolicy struct {
	// QuarantineMin is a number of children; 1 leaves only the share.
	QuarantineMin int
	// QuarantineShare is a part of the children, those quarantined within
	// Window included; 0.1 is 10 %.
	QuarantineShare float64
	// Window is how long a quarantined child is remembered.
	Window time.Duration
	// OnExceed says what follows when the limit is exceeded or a child
	// escalates. Escalate (the default): the parent is told. Quarantine: when
	// a child escalates, it is quarantined; when the limit is exceeded, the
	// group is stopped and counts as one quarantined child of its parent.
	OnExceed OnExceed
}

func (p GroupPolicy) normal() GroupPolicy {
	if p.QuarantineMin <= 0 {
		p.QuarantineMin = DefaultQuarantineMin
	}
	if p.QuarantineShare <= 0 {
		p.QuarantineShare = DefaultQuarantineShare
	}
	if p.Window <= 0 {
		p.Window = DefaultGroupWindow
	}
	if p.OnExceed == OnExceedDefault {
		p.OnExceed = Escalate
	}
	return p
}

// groupState is what makes a core a group. Only the goroutine of its mailbox
// touches it.
type groupState struct {
	policy GroupPolicy
	times  history // of quarantined children
}

// quarantined notes one more quarantined child. It returns how many there were
// within the window, and of how many; running includes the new one (and those
// of the others that are still on their way out, which is close enough).
func (g *groupState) quarantined(now time.Time, running int) (n, total int) {
	g.times.forget(now, g.policy.Window)
	total = running + len(g.times)
	g.times = append(g.times, now)
	return len(g.times), total
}

// limit is the number of quarantined children that is too many.
func (g *groupState) limit(total int) int {
	share := int(g.policy.QuarantineShare * float64(total))
	if float64(share) < g.policy.QuarantineShare*float64(total) {
		share++
	}
	return max(g.policy.QuarantineMin, share)
}

// A Group is a supervisor: a node of the tree without messages of its own. Its
// children restart one by one. It is never restarted itself, because only
// their spawner knows what they were.
type Group struct{ core *core }

// SpawnGroup starts a group. Its errors are those of Spawn.
func SpawnGroup(parent Parent, name string, policy GroupPolicy) (*Group, error) {
	if name == "" {
		return nil, errors.New("spawn group: no name")
	}
	p := parent.node()
	g := newGroup(p.system, p, name, policy)
	if err := spawnBelow(parent, g.core); err != nil {
		return nil, err
	}
	return g, nil
}

func newGroup(system *System, parent *core, name string, policy GroupPolicy) *Group {
	c := newCore(system, parent, name, groupKind, 0)
	c.group = &groupState{policy: policy.normal()}
	c.hooks = groupHooks{c}
	c.mb.supervisor = true
	return &Group{c}
}

// Stop stops all below the group, then the group, and waits for that; Spawn
// returns ErrStopped from now on. If ctx ends first, Stop returns its error
// and the group goes on stopping. An actor below the group must not wait for
// it.
func (g *Group) Stop(ctx context.Context) error {
	g.core.requestStop()
	return g.core.wait(ctx)
}

// RequestStop is Stop without waiting.
func (g *Group) RequestStop() { g.core.requestStop() }

// Done returns a channel that is closed when the group has ended.
func (g *Group) Done() <-chan struct{} { return g.core.doneChan() }

// Err returns nil while Done is open, then ErrStopped, or an error that wraps
// ErrFailed if the group was quarantined.
func (g *Group) Err() error { return g.core.err() }

// Name returns the dotted name, for logs.
func (g *Group) Name() string { return g.core.path() }

func (g *Group) node() *core { return g.core }

func (g *Group) adopt(child *core) error { return g.core.adopt(child) }

// spawn asks a group to spawn a child.
type spawn struct {
	child *core
	reply chan error // capacity 1
}

// adopt has the group spawn child where it runs: the library's list of
// children is not for other goroutines. A group does nothing that takes time,
// is never suspended, and answers all requests when it stops, so this returns
// soon. The queue of requests is as long as there are callers.
func (c *core) adopt(child *core) error {
	s := &spawn{child: child, reply: make(chan error, 1)}
	if err := c.mb.post(item{msg: s}); err != nil {
		return err
	}
	return <-s.reply
}

// groupHooks is the behaviour of a group: it spawns.
type groupHooks struct{ core *core }

func (groupHooks) start(*incarnation) error { return nil }

func (h groupHooks) handle(msg any) (err error) {
	s, ok := msg.(*spawn)
	if !ok {
		return fmt.Errorf("group does not know a %T", msg)
	}
	err = errors.New("spawn panicked")
	defer func() { s.reply <- err }()
	err = s.child.spawnWith(h.core.mb.invoker.(actor.SpawnerContext))
	return nil
}

func (groupHooks) stop(Reason) {}

func (groupHooks) lost(any) {}
