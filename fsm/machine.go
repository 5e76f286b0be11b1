package fsm

import (
	"fmt"
	"sync/atomic"

	commandv1 "trivet/proto/trivet/command/v1"
)

// DefaultRingSize is the number of events kept for watchers unless Options
// says otherwise. At 1,000 changes per second it lets a watcher be away for
// 16 s before it is given a difference instead of the events themselves.
const DefaultRingSize = 16384

// Options configures a Machine. The zero value is usable.
type Options struct {
	// RingSize is the number of events kept for watchers; 0 means
	// DefaultRingSize.
	RingSize int
	// MaxCommandVersion makes the machine that of an older program: it knows the
	// operations up to this command version and stops at later ones. 0 means
	// CommandVersion. Tests of upgrades use it.
	MaxCommandVersion uint32
}

// Machine is the replicated state machine of one server. Apply and Restore
// belong to one goroutine; everything else may be called from anywhere.
type Machine struct {
	root    atomic.Pointer[Root]
	ring    ring
	digests digests

	// The fields below belong to the goroutine that applies.

	work   *Root
	enc    *encoder
	known  uint32 // newest command version that may be applied
	failed error
}

// New makes a machine with an empty state at revision 0.
func New(o Options) *Machine {
	size := o.RingSize
	if size <= 0 {
		size = DefaultRingSize
	}
	known := o.MaxCommandVersion
	if known == 0 || known > CommandVersion {
		known = CommandVersion
	}
	m := &Machine{work: newRoot(), enc: newEncoder(), known: known}
	m.root.Store(m.work.publish(newRoot()))
	m.ring.init(size)
	return m
}

// Root returns the newest published state.
func (m *Machine) Root() *Root { return m.root.Load() }

// Apply applies the commands of one log entry, in order, and publishes the
// state after the last of them. There is one result per command; the rows in
// results are shared with the state and must not be modified. The machine
// keeps parts of the entry: the caller gives it up.
//
// An error means that this replica cannot follow its peers any further; the
// published state is that before the entry, and every later call fails the
// same way until Restore succeeds. An operation or a command version that this
// program does not know is an *UnknownCommandError, an entry that is not above
// the last one (by its index, unless that is 0) an *InvariantError: whoever has
// restored a snapshot from ahead of the log skips the entries it contains.
func (m *Machine) Apply(pos Position, e *commandv1.Entry) ([]*commandv1.Result, error) {
	if m.failed != nil {
		return nil, m.failed
	}
	results, events, err := m.apply(pos, e.GetCommands())
	if err != nil {
		m.failed = err
		return nil, err
	}
	root := m.publishable()
	m.ring.publish(root, events, m.root.Store)
	m.digests.add(root)
	return results, nil
}

func (m *Machine) publishable() *Root { return m.work.publish(m.root.Load()) }

func (m *Machine) apply(
	pos Position, commands []*commandv1.Command,
) ([]*commandv1.Result, []Event, error) {
	if pos.Index != 0 && pos.Index <= m.work.position.Index {
		return nil, nil, &InvariantError{Detail: fmt.Sprintf(
			"entry %d comes after entry %d", pos.Index, m.work.position.Index)}
	}
	// All of them are looked at first so that an entry is applied whole or not
	// at all.
	ops := make([]*applier, len(commands))
	for i, c := range commands {
		op, err := applierOf(pos, i, c, m.known)
		if err != nil {
			return nil, nil, err
		}
		ops[i] = op
	}
	m.work.position = pos
	results := make([]*commandv1.Result, len(commands))
	var events []Event
	for i, c := range commands {
		m.work.revision++
		m.work.commandVersion = max(m.work.commandVersion, c.GetVersion())
		was := m.work.meta.GetTime()
		m.work.meta.Time = max(was, c.GetTime())
		t := &tx{work: m.work, enc: m.enc, cmd: c, events: events, start: len(events)}
		if t.since2() {
			t.tick(was)
		}
		results[i] = t.execute(ops[i])
		events = t.events
	}
	return results, events, nil
}

// InvariantError reports damage: something that correct code cannot bring
// about. The replica that finds it must stop rather than spread it.
type InvariantError struct{ Detail string }

// Error returns what is wrong.
func (e *InvariantError) Error() string { return "state machine invariant broken: " + e.Detail }
