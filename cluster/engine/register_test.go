package engine

import (
	"context"
	"testing"

	"trivet/cluster/replica"
	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
)

// registration is what a server writes of itself when it has started.
func registration(id, boot string, seen *uint64) *commandv1.Command {
	return &commandv1.Command{Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
		IfModifyRevision: seen,
		Server:           &commandv1.ServerRow{Id: id, Name: id, BootId: boot, CommandVersion: fsm.CommandVersion},
	}}}
}

// restarted makes the rig's server one whose row is still that of its process
// before, as is known to a state that it may not have caught up to.
func (r *rig) restarted(version uint32) {
	r.t.Helper()
	c := registration("self", "before", nil)
	c.Version, c.GetPutServer().Server.CommandVersion = version, version
	if _, err := r.cfg.Machine.Apply(fsm.Position{Index: 1, Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{c}}); err != nil {
		r.t.Fatal(err)
	}
	r.cfg.Members = func() map[string]uint32 { return map[string]uint32{"self": fsm.CommandVersion} }
	r.apply(1)
}

// TestRegistrationTakesTheLeadersVersion: by the rules of version 1 a process
// that has ended is forgotten and not retired, so it matters that a server which
// has just started does not register under them, be it the leader or not.
func TestRegistrationTakesTheLeadersVersion(t *testing.T) {
	seen := uint64(1)
	for name, is := range map[string]struct {
		rows uint32 // command version of the row
		seen *uint64
		want uint32
	}{
		"all are of today":      {fsm.CommandVersion, &seen, fsm.CommandVersion},
		"one is older":          {1, &seen, 1},
		"of an older programme": {fsm.CommandVersion, nil, 1},
	} {
		for _, forwarded := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				inBubble(t, func(t *testing.T, r *rig) {
					r.restarted(is.rows)
					r.lead("self")
					r.read = func(context.Context) (uint64, error) { return 1, nil }
					r.propose = accepts(1)
					c := registration("self", bootID, is.seen)
					var err error
					if forwarded {
						c.Version = 1
						_, err = r.ProposeHere(t.Context(), []*commandv1.Command{c})
					} else {
						_, err = r.Propose(t.Context(), "me", nil, c)
					}
					if err != nil {
						t.Fatal(err)
					}
					if got := r.asked[0].GetVersion(); got != is.want {
						t.Errorf("forwarded %t: registered by the rules of version %d, want %d", forwarded, got, is.want)
					}
				})
			})
		}
	}
}

// TestRegistrationWaitsForALeaderThatKnows: one that cannot say that it leads
// applies none.
func TestRegistrationWaitsForALeaderThatKnows(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		seen := uint64(1)
		r.restarted(fsm.CommandVersion)
		r.propose = accepts(1)
		r.read = func(context.Context) (uint64, error) { return 0, replica.ErrNotLeader }
		_, err := r.ProposeHere(t.Context(), []*commandv1.Command{registration("other", "b", &seen)})
		if errs.Reason(err) != reasonNotLeader || len(r.attempts()) != 0 {
			t.Errorf("%v after %v", err, r.attempts())
		}
	})
}

// TestRetiredNumberingIsReplaced: a server whose row was removed although it
// lives can write again, under numbers that are known to be of its process.
func TestRetiredNumberingIsReplaced(t *testing.T) {
	inBubble(t, func(t *testing.T, r *rig) {
		r.lead("self")
		r.apply(100)
		retired := map[string]bool{"server/self/" + bootID: true}
		r.propose = func(_ context.Context, cmds []*commandv1.Command) ([]*commandv1.Result, error) {
			if retired[cmds[0].GetRequestId().GetWriter()] {
				return []*commandv1.Result{{Revision: 9, Code: commandv1.Code_CODE_ABORTED, Reason: fsm.ReasonRequestForgotten}}, nil
			}
			return []*commandv1.Result{{Revision: 9}}, nil
		}
		write := func(want string) {
			t.Helper()
			if _, err := r.Propose(t.Context(), "me", nil, put("k")); errs.Reason(err) != want {
				t.Errorf("%v, want %q", err, want)
			}
		}
		// A caller's own numbering says nothing about the server's.
		retired["client/x"] = true
		if _, err := r.Propose(t.Context(), "me", &Request{Writer: "client/x", Number: 1, Lowest: 1}, put("k")); errs.Reason(err) != fsm.ReasonRequestForgotten {
			t.Error(err)
		}
		write(fsm.ReasonRequestForgotten)
		write("")
		retired["server/self/"+bootID+"/1"] = true
		write(fsm.ReasonRequestForgotten)
		write("")
		last := r.asked[len(r.asked)-1].GetRequestId()
		if last.GetWriter() != "server/self/"+bootID+"/2" || last.GetNumber() != 1 {
			t.Errorf("the last write was %v", last)
		}
	})
}
