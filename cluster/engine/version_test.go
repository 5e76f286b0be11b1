package engine

import (
	"testing"

	"google.golang.org/grpc/codes"

	"trivet/fsm"
	"trivet/internal/errs"
	commandv1 "trivet/proto/trivet/command/v1"
)

func TestCommandsStayWithinWhatTheOldestServerKnows(t *testing.T) {
	m := fsm.New(fsm.Options{})
	server := func(index uint64, id string, version uint32) {
		t.Helper()
		if _, err := m.Apply(fsm.Position{Index: index, Term: 1}, &commandv1.Entry{Commands: []*commandv1.Command{{
			Version: 1, Op: &commandv1.Command_PutServer{PutServer: &commandv1.PutServer{
				Server: &commandv1.ServerRow{Id: id, Name: id, BootId: "b", CommandVersion: version},
			}},
		}}}); err != nil {
			t.Fatal(err)
		}
	}
	members := map[string]uint32{"s1": fsm.CommandVersion, "s2": 0}
	e := &Engine{cfg: Config{Machine: m, Replica: idOnly{}, BootID: "b", Members: func() map[string]uint32 { return members }}}
	newer := &commandv1.Command{Op: &commandv1.Command_SetLimits{SetLimits: &commandv1.SetLimits{}}}
	check := func(when string, want uint32, refused bool) {
		t.Helper()
		if got := e.Version(); got != want {
			t.Errorf("%s: version %d, want %d", when, got, want)
		}
		old := &commandv1.Command{Op: &commandv1.Command_PutConfig{PutConfig: &commandv1.PutConfig{Key: "k"}}}
		if err := e.stampVersion(old); err != nil || old.GetVersion() != want {
			t.Errorf("%s: an old operation got version %d, %v", when, old.GetVersion(), err)
		}
		err := e.stampVersion(newer)
		if refused != (errs.Code(err) == codes.FailedPrecondition) {
			t.Errorf("%s: a new operation: %v", when, err)
		}
	}
	check("one was not heard", 1, true)
	members["s2"] = fsm.CommandVersion
	check("nobody has a row, all were heard", fsm.CommandVersion, false)
	members["s2"] = 0
	server(1, "s1", fsm.CommandVersion)
	check("a member has none", 1, true)
	server(2, "s2", 1)
	check("a member is older", 1, true)
	server(3, "s2", fsm.CommandVersion)
	check("all are of today", fsm.CommandVersion, false)
	server(4, "gone", 1)
	check("one that has left was older", fsm.CommandVersion, false)
}

type idOnly struct{ Replica }

func (idOnly) ID() string { return "s1" }
