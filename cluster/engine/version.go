package engine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
)

// firstVersion is the command version that every program knows.
const firstVersion = 1

// sealedVersion is the first command version in which environments are sealed.
const sealedVersion = 2

// Version is the newest command version that all servers can apply: while one
// of them runs an older program, nobody makes commands that it does not know,
// nor any that it would apply by other rules. A member whose row is not there
// yet counts by what it said of itself; one that said nothing may be of any
// age.
func (e *Engine) Version() uint32 {
	version, _ := e.oldest()
	return version
}

// oldest returns the shared command version and the name of a server that
// keeps it from being newer.
func (e *Engine) oldest() (version uint32, server string) {
	root := e.Root()
	version = fsm.CommandVersion
	lower := func(v uint32, name string) {
		if v = max(v, firstVersion); v < version {
			version, server = v, name
		}
	}
	var members map[string]uint32
	if e.cfg.Members != nil {
		members = e.cfg.Members()
	}
	for row := range root.Servers {
		// Rows of servers that have left are swept later than they leave.
		if _, ok := members[row.GetId()]; ok || e.cfg.Members == nil {
			lower(row.GetCommandVersion(), row.GetName())
		}
	}
	if e.cfg.Members != nil {
		// Until its own row is there or the leader was asked, this server may not
		// have caught up, and not know of rows that are older.
		row, _ := root.Server(e.cfg.Replica.ID())
		if row.GetBootId() != e.cfg.BootID && root.Len(fsm.TableServers) > 0 && !e.caughtUp.Load() {
			lower(firstVersion, "that answers, which is still catching up,")
		}
		if len(members) == 0 {
			lower(firstVersion, "that answers, which has just started,")
		}
		for id, said := range members {
			if _, ok := root.Server(id); !ok {
				lower(said, id)
			}
		}
	}
	return version, server
}

// cap lowers the version of commands that another server stamped to what all
// servers can apply, which the leader knows best, and refuses what this program
// does not know: in the log it would stop every server like this one.
func (e *Engine) cap(cmds []*commandv1.Command) error {
	version := e.Version()
	for _, c := range cmds {
		if _, known := fsm.MinVersion(c); c.GetVersion() > version || !known && c.GetOp() != nil {
			if err := e.stampVersion(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// stampRegistrations gives registrations of servers the version that this
// server, which leads, knows that all can apply. A server that has just started
// takes too low a one, and by the rules of version 1 nothing keeps a registration
// that comes late from undoing the present one. The commands that are changed are
// copies: an earlier attempt may still hold the others.
func (e *Engine) stampRegistrations(ctx context.Context, cmds []*commandv1.Command) ([]*commandv1.Command, error) {
	registers := func(c *commandv1.Command) bool {
		return c.GetPutServer().GetServer() != nil && c.GetPutServer().IfModifyRevision != nil
	}
	if !slices.ContainsFunc(cmds, registers) {
		return cmds, nil
	}
	if err := e.catchUpHere(ctx); err != nil {
		return nil, err
	}
	out := slices.Clone(cmds)
	for i, c := range out {
		if registers(c) {
			out[i] = proto.CloneOf(c)
			if err := e.stampVersion(out[i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// catchUpHere waits until this server, which leads, has had the newest state
// once, and knows the members.
func (e *Engine) catchUpHere(ctx context.Context) error {
	if !e.caughtUp.Load() {
		rev, err := e.cfg.Replica.ReadRevision(ctx)
		if err != nil {
			return err
		}
		if err := e.cfg.Replica.WaitRevision(ctx, rev); err != nil {
			return fmt.Errorf("wait for revision %d before a server is registered: %w", rev, err)
		}
		e.caughtUp.Store(true)
	}
	return e.poll(ctx, func() bool { return e.cfg.Members == nil || len(e.cfg.Members()) > 0 })
}

// settleTime is how long a command that needs the newest version waits for a
// cluster that has just started: its servers announce themselves within a
// second.
const (
	settleTime = 5 * time.Second
	settlePoll = 10 * time.Millisecond
)

// settle waits until every server has announced itself, if the commands need to
// know.
func (e *Engine) settle(ctx context.Context, cmds ...*commandv1.Command) {
	need := uint32(0)
	for _, c := range cmds {
		v, _ := fsm.MinVersion(c)
		need = max(need, v)
	}
	if need > firstVersion {
		// Whoever stamps the version says what is missing.
		_ = e.poll(ctx, e.announced)
	}
}

// poll waits until it is so, for settleTime at most.
func (e *Engine) poll(ctx context.Context, so func() bool) error {
	if so() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// announced tells whether the state has a row of each member, and of this
// server's own incarnation.
func (e *Engine) announced() bool {
	if e.cfg.Members == nil {
		return true
	}
	root, members := e.Root(), e.cfg.Members()
	for id := range members {
		if _, ok := root.Server(id); !ok {
			return false
		}
	}
	row, _ := root.Server(e.cfg.Replica.ID())
	return len(members) > 0 && row.GetBootId() == e.cfg.BootID
}

// stampVersion gives a command the version that all servers can apply, and
// refuses one that asks for more.
func (e *Engine) stampVersion(cmd *commandv1.Command) error {
	version, server := e.oldest()
	need, known := fsm.MinVersion(cmd)
	if !known && cmd.GetOp() != nil {
		need, server = fsm.CommandVersion+1, "that answers"
	}
	if need > version {
		return errs.New(codes.FailedPrecondition, "UPGRADE_IN_PROGRESS",
			"this needs command version %d, and server %s knows only version %d", need, server, version).
			WithHint("upgrade all servers first: trivet status shows their versions")
	}
	cmd.Version = version
	return nil
}
